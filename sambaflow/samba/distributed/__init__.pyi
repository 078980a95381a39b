from samba.distributed import *
