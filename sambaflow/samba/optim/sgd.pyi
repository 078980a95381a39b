from samba.optim.sgd import *
