from samba.functional.reduce import *
