from samba.distributed.bagua.session import *
