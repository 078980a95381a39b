from samba.distributed.threads import *
