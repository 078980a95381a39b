from samba.distributed.job import *
