from samba.functional.activation import *
