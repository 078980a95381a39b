from samba.directives import *
