from samba.reporting.report_command import (
    BadTimes as BadTimes,
    run as run,
    section_seconds as section_seconds,
)
