from samba.remembering.forward_call import (
    forward_digest as forward_digest,
)
