"""Functions on tensors: torch's own, and those that SambaFlow adds (``addmm``, ``sn_gather``, …).

They run eagerly as plain torch and are traced inside ``forward``.
"""

# ruff: noqa: F403  # each module says what it offers

import types

from samba.functional._added import groupby as groupby
from samba.functional.arithmetic import *
from samba.functional.layers import *
from samba.functional.logical import *
from samba.functional.loss import *
from samba.functional.reduce import *
from samba.functional.stir import *
from samba.functional.tensorarithmetic import *
from samba.functional.tensorops import *

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]  # all that is imported, for checkers too
    name
    for name, value in dict(globals()).items()
    if not name.startswith("_") and not isinstance(value, types.ModuleType)
]
