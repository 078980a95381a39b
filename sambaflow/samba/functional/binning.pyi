from samba.functional.binning import *
