from samba.distributed.bagua.algorithms.base import *
