"""The one session of the process, which is ``samba.session``."""

from samba.session import SambaSession

__all__ = ["session"]

session = SambaSession()
"""The session that scripts use; tensors, optimizers and tools of this package use it too."""
