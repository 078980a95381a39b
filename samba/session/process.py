"""The one session of the process, which is ``samba.session``."""

from __future__ import annotations

from samba.nn.converted import converted_buffers, forget_converted_buffers
from samba.session import SambaSession
from samba.session.metrics import report_at_exit
from samba.session.parts import callable_on_class
from samba.tensor.labels import forget_fast_access


class _ProcessSession(SambaSession):
    """The session that has what belongs to the process.

    These are the buffers of converted models and the marks of fast access, which no other session
    forgets.
    """

    _ran_before = False

    @property
    def has_run(self) -> bool:
        """Whether something has run on the device in this process, resets or not."""
        return self._ran_before or bool(self.counters.runs)

    def _start(self) -> None:
        super()._start()
        self.buffer_dict = converted_buffers()

    @callable_on_class
    def reset(self, pef_path: str = "") -> None:
        """Close the device and start over, with another PEF if one is given."""
        self._ran_before = self.has_run
        forget_converted_buffers()
        forget_fast_access()
        super().reset(pef_path)


session: _ProcessSession = _ProcessSession()
SambaSession.of_process = session
"""The session that scripts use; tensors, optimizers and tools of this package use it too."""
report_at_exit(session.metrics)
