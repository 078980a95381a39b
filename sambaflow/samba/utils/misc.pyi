from samba.utils.misc import *
