from samba.utils.utils import *
