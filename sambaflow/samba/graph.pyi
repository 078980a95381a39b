from samba.graph import *
