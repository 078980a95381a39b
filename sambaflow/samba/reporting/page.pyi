from samba.reporting.page import (
    Times as Times,
    is_place as is_place,
    page as page,
    summary as summary,
)
