from samba.version import (
    __version__ as __version__,
)
