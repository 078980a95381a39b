from samba.utils.trainer.torch import *
