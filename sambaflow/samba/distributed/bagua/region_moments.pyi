from samba.distributed.bagua.region_moments import *
