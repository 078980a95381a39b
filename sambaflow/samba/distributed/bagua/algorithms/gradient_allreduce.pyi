from samba.distributed.bagua.algorithms.gradient_allreduce import *
