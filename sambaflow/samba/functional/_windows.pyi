from samba.functional._windows import *
