from samba.distributed.bagua.algorithms import *
