from samba.functional.logical import *
