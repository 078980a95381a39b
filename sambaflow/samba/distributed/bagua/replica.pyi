from samba.distributed.bagua.replica import *
