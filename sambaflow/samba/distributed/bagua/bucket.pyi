from samba.distributed.bagua.bucket import *
