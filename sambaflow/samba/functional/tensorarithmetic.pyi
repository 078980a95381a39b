from samba.functional.tensorarithmetic import *
