from samba.remembering.stand_ins import (
    CallLog as CallLog,
    Incomparable as Incomparable,
    StandIn as StandIn,
    digest_of as digest_of,
    memory_of as memory_of,
)
