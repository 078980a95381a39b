from samba.functional.arithmetic import *
