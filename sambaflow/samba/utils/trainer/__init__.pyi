from samba.utils.trainer import *
