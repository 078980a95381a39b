from samba.distributed.environment import *
