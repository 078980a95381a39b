from samba.sn_private import *
