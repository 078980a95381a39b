from samba.remembering.records import (
    Record as Record,
    record_of as record_of,
    trace_of as trace_of,
)
