from samba.distributed.settings import *
