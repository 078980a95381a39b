from samba.argconf.app_parser import (
    AppParser as AppParser,
    WRONG_USAGE as WRONG_USAGE,
    given_options as given_options,
    meant as meant,
    run_command as run_command,
)
