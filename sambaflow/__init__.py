"""The name that SambaFlow scripts import: ``sambaflow.samba`` is the package ``samba``.

Importing this package alone loads neither torch nor ``samba``; the first use of
``sambaflow.samba`` does.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["__version__", "is_demo"]

__version__ = "0.1.0"


def is_demo() -> bool:
    """Tell whether this is a demonstration build of the front end.

    Returns:
        Always False: nothing is held back here.
    """
    return False


def __getattr__(name: str) -> Any:
    # Scripts write `import sambaflow` and then `sambaflow.samba.optim.SGD`.
    if name in ("samba", "logging", "sambacollections", "mac"):
        return importlib.import_module(f"{__name__}.{name}")  # by name: only what is used
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
