from samba.distributed.errors import *
