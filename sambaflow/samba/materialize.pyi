from samba.materialize import (
    materialize as materialize,
)
