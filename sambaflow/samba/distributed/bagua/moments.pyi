from samba.distributed.bagua.moments import *
