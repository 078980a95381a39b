from samba.ops.binary import *
