from samba.nn.converted import (
    converted_last as converted_last,
    note_converted as note_converted,
)
