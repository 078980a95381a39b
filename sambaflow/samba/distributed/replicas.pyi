from samba.distributed.replicas import *
