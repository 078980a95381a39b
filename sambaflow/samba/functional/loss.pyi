from samba.functional.loss import *
