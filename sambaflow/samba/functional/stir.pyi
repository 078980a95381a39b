from samba.functional.stir import *
