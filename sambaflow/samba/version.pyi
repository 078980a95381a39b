from samba.version import *
