from samba.nn.buffers import *
