from samba.reporting.page import (
    page as page,
)
