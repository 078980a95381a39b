from samba.argconf.args import *
