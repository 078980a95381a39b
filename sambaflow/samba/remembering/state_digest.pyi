from samba.remembering.state_digest import (
    Incomparable as Incomparable,
    StateDigest as StateDigest,
)
