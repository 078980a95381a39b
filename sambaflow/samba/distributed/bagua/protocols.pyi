from samba.distributed.bagua.protocols import *
