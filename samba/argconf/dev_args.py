"""``DevArgs``: the options that only ``--debug`` and ``dev_mode`` show, as a pydantic model.

It is made when first asked for, because pydantic is an extra. No page says what SambaFlow's module
of this name holds; here it is what steers the hardware compiler and changes nothing on this device.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from samba.argconf.args import model_of
from samba.argconf.options import OPTIONS

if TYPE_CHECKING:
    DevArgs: Any

__all__ = ["DevArgs"]


def __getattr__(name: str) -> Any:
    if name != "DevArgs":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _dev_args()


@functools.cache
def _dev_args() -> Any:
    hidden = [option for option in OPTIONS if not option.help]
    doc = "Options that --debug shows; further fields are kept."
    return model_of("DevArgs", hidden, module=__name__, doc=doc)
