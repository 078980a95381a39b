from samba.distributed.bagua.hierarchy import *
