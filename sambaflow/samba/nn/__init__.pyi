from samba.nn import *
