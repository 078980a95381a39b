from samba.distributed.bagua import *
