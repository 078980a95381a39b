from samba.argconf.options import *
