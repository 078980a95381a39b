from samba.functional.layers import *
