from samba.distributed.bagua.algorithms.decentralized import *
