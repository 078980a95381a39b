from samba.functional.functional_utils import (
    is_static as is_static,
    is_symbolic as is_symbolic,
)
