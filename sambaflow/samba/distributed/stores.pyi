from samba.distributed.stores import *
