from samba.argconf.parsed import (
    configure as configure,
    default_fields as default_fields,
    divides_batch as divides_batch,
    last_parsed_args as last_parsed_args,
    note_parsed as note_parsed,
    tell_lost as tell_lost,
)
