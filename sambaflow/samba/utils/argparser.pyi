from samba.utils.argparser import *
