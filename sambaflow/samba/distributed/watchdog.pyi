from samba.distributed.watchdog import *
