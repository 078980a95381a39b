from samba.argconf import *
