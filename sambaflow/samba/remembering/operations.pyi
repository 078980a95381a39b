from samba.remembering.operations import (
    add_operation as add_operation,
    refuse_other_implementations as refuse_other_implementations,
)
