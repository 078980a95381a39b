from samba.argconf.reading import (
    NotedArgs as NotedArgs,
    following_command as following_command,
    looked_at as looked_at,
    noted_fields as noted_fields,
    unread_options as unread_options,
)
