from samba.utils.pef_utils import *
