from samba.distributed.bagua.world import *
