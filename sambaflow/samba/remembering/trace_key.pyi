from samba.remembering.trace_key import (
    trace_key as trace_key,
)
