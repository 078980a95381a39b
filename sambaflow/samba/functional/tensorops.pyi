from samba.functional.tensorops import *
