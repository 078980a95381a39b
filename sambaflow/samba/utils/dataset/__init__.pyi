from samba.utils.dataset import *
