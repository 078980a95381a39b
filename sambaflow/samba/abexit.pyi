from samba.abexit import *
