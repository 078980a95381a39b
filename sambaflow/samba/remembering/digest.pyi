from samba.remembering.digest import (
    Digest as Digest,
)
