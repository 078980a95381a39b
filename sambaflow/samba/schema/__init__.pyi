from samba.schema import *
