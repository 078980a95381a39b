from samba.utils.trainer.samba import *
