from samba.errors import *
