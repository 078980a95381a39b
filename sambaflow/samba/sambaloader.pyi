from samba.sambaloader import *
