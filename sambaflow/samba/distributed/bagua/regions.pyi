from samba.distributed.bagua.regions import *
