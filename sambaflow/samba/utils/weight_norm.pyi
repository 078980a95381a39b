from samba.utils.weight_norm import *
