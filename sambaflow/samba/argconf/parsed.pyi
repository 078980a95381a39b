from samba.argconf.parsed import *
