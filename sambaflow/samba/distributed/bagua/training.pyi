from samba.distributed.bagua.training import *
