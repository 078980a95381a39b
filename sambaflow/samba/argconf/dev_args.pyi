from samba.argconf.dev_args import (
    DevArgs as DevArgs,
)
