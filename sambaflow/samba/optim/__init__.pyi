from samba.optim import *
