from samba.reporting.section_times import (
    BadTimes as BadTimes,
    section_seconds as section_seconds,
)
