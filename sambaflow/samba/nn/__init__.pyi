from samba.nn import (
    SambaParameter as SambaParameter,
    parameter as parameter,
)
