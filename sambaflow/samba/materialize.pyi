from samba.materialize import *
