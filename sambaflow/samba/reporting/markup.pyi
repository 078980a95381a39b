from samba.reporting.markup import (
    element as element,
    link_to_line as link_to_line,
    table as table,
    text as text,
)
