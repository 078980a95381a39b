from samba.distributed.bagua.backend import *
