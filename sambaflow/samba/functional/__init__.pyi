from samba.functional import *
