from samba.ops.op_utils import (
    broadcast_input_shapes as broadcast_input_shapes,
)
