from samba.argconf.options import (
    COMMANDS as COMMANDS,
    OPTIONS as OPTIONS,
    Option as Option,
)
