from samba.optim.adam import *
