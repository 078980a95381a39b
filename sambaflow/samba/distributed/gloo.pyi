from samba.distributed.gloo import *
