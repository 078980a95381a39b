from samba.remembering.built_in_parts import (
    BY_NAME as BY_NAME,
    PLAIN as PLAIN,
    parts_of as parts_of,
)
