from samba.distributed.bagua.operations import *
