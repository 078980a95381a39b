from samba.functional.functional_decorator_utils import (
    experimental as experimental,
)
