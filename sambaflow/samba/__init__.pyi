from samba import *
