from samba.nn.conversion import *
