from samba.lazy_param import *
