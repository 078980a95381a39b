from samba.nn.parameter import (
    SambaParameter as SambaParameter,
)
