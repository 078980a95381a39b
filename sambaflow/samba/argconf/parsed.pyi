from samba.argconf.parsed import (
    begins_app as begins_app,
    configure as configure,
    default_fields as default_fields,
    divides_batch as divides_batch,
    last_parsed_args as last_parsed_args,
    looking_in as looking_in,
    note_parsed as note_parsed,
    tell_lost as tell_lost,
    tell_unread as tell_unread,
)
