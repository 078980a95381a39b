from samba.schema.snconfig import *
