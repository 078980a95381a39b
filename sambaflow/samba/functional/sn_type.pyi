from samba.functional.sn_type import (
    SNType as SNType,
    torch_type as torch_type,
)
