from samba.ops import *
