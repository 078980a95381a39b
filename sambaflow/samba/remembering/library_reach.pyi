from samba.remembering.library_reach import (
    Reach as Reach,
    is_followed as is_followed,
)
