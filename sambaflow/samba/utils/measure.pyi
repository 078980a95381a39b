from samba.utils.measure import *
