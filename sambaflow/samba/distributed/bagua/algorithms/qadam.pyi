from samba.distributed.bagua.algorithms.qadam import *
