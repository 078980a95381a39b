from samba.profiler import *
