from samba.distributed.rendezvous import *
