from samba.profiler import (
    MEASUREMENTS as MEASUREMENTS,
    PROFILER as PROFILER,
    Profiler as Profiler,
    UnknownEvent as UnknownEvent,
)
