from samba.utils.flat_yaml import *
