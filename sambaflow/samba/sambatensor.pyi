from samba.sambatensor import *
