from samba.session import (
    Counters as Counters,
    SambaSession as SambaSession,
)
