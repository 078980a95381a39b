from samba.ops.op_utils import *
