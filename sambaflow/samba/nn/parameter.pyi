from samba.nn.parameter import *
