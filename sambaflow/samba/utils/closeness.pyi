from samba.utils.closeness import *
