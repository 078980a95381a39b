from samba.functional.functional_utils import *
