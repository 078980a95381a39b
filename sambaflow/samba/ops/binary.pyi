from samba.ops.binary import (
    BroadcastBinaryOperation as BroadcastBinaryOperation,
)
