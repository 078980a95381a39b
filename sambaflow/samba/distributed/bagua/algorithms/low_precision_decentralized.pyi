from samba.distributed.bagua.algorithms.low_precision_decentralized import *
