from samba.utils.safetensors_header import (
    BadHeader as BadHeader,
    DTYPES as DTYPES,
    Entry as Entry,
    HEADER_BYTES as HEADER_BYTES,
    read_header as read_header,
)
