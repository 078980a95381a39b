from samba.utils.common import *
