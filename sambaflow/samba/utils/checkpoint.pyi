from samba.utils.checkpoint import *
