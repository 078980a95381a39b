from samba.distributed.bagua.algorithms.async_model_average import *
