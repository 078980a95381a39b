from samba.optim._base import *
