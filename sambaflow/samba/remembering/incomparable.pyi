from samba.remembering.incomparable import (
    Incomparable as Incomparable,
)
