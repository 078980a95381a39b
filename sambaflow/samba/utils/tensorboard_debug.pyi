from samba.utils.tensorboard_debug import *
