from samba.optim.qadam import *
