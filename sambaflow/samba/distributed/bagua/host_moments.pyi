from samba.distributed.bagua.host_moments import *
