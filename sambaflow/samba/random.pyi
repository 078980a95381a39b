from samba.random import *
