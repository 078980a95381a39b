from samba.functional.sn_type import *
