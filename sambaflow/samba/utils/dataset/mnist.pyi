from samba.utils.dataset.mnist import *
