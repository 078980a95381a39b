from samba.distributed.bagua.algorithms.bytegrad import *
