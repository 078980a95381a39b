from samba.distributed.launcher import *
