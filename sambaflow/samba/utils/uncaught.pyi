from samba.utils.uncaught import (
    FRAMES_VARIABLE as FRAMES_VARIABLE,
    message_of as message_of,
    show_uncaught_as_messages as show_uncaught_as_messages,
)
