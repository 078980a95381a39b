from samba.env import *
