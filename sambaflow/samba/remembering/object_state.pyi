from samba.remembering.object_state import (
    attributes_of as attributes_of,
    built_in_base as built_in_base,
    holds_no_more as holds_no_more,
)
