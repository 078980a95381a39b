from samba.graph import (
    FwdGraph as FwdGraph,
    SambaGraph as SambaGraph,
)
