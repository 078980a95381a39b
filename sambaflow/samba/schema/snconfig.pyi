from samba.schema.snconfig import (
    SNConfig as SNConfig,
)
