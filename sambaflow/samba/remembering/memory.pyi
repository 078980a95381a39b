from samba.remembering.memory import (
    TRACE_VARIABLE as TRACE_VARIABLE,
    TraceMemory as TraceMemory,
    open_memory as open_memory,
    remembers_traces as remembers_traces,
)
