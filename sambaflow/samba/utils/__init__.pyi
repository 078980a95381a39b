from samba.utils import *
