from samba.utils.numeric import *
