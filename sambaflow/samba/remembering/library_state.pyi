from samba.remembering.library_state import (
    Libraries as Libraries,
    OF_EVERY_CLASS as OF_EVERY_CLASS,
)
