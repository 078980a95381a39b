from samba.reporting.report_command import (
    run as run,
)
