"""Whether this process has joined others, for modules that do not load what joins them."""

from __future__ import annotations

from typing import Any

from samba.support.slot import Slot

PRESENT: Slot[Any] = Slot()
"""The :class:`~samba.distributed.job.Job` of this process, none outside of one."""
