from samba.session import *
