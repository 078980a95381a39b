from samba._trace_utils import *
