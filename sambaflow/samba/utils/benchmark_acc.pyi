from samba.utils.benchmark_acc import *
