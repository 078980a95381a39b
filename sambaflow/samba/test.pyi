from samba.test import *
