"""Where do the numbers part? Torch and the device, operation by operation.

``samba.utils.compare`` is the way in for scripts, ``python -m samba compare`` for a terminal.
"""

from __future__ import annotations

from samba.comparison.report import Comparison, Gap, Phase, Row, Statistics, Status
from samba.comparison.walk import compare

__all__ = ["Comparison", "Gap", "Phase", "Row", "Statistics", "Status", "compare"]
