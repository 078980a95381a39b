from samba.abexit import (
    SambaAtexit as SambaAtexit,
)
