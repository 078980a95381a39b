"""Importing this makes ``bagua``, ``bagua.torch_api``, … importable, as upstream's scripts do.

Example::

    import sambaflow.samba.distributed.bagua.install

    import bagua.torch_api as bagua

    bagua.init_process_group()
    model = model.with_bagua([optimizer], bagua.algorithms.bytegrad.ByteGradAlgorithm())

``python -m samba.distributed.bagua SCRIPT`` imports it for a script that stays as it is. It gives
``torch.nn.Module`` and ``torch.Tensor`` the methods that upstream's package gives them; nothing
else in this project imports it, and :func:`uninstall` undoes it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from torch import nn

from samba.distributed.bagua.torch_api.distributed import BaguaModule
from samba.distributed.bagua.torch_api.refused import REFUSED
from samba.errors import ArgumentError
from samba.support.alias import alias_package, drop_alias
from samba.support.patches import Patches
from samba.tensor.bagua import disable_bagua_tensors, enable_bagua_tensors

__all__ = ["install", "uninstall"]

_REAL = "samba.distributed.bagua"
_PLACES = {
    "bagua": _REAL,
    "bagua.torch_api.algorithms": f"{_REAL}.algorithms",
    "bagua.torch_api.bucket": f"{_REAL}.bucket",
}
"""Packages and modules by upstream's name. The finder that is asked first is the last one here."""

_methods = Patches(
    [(nn.Module, name, value) for name, value in vars(BaguaModule).items() if "bagua" in name]
)


class _Refusals(MetaPathFinder):
    """Refuses what upstream has and this package has not."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise for such a name; None for others."""
        # `from bagua.torch_api import x` asks for x below the module's own name.
        name = f"bagua{fullname.removeprefix(_REAL)}" if fullname.startswith(_REAL) else fullname
        for refused, reason in REFUSED.items():
            if name == refused or name.startswith(f"{refused}."):
                raise ImportError(f"{name} is not in this package: {reason}", name=fullname)
        return None


_refusals = _Refusals()


def install() -> None:
    """Make upstream's names importable, and give torch's classes their methods.

    A second call changes nothing.

    Raises:
        ArgumentError: If Bagua's own package can be imported, which is never hidden.
    """
    importlib.import_module(f"{_REAL}.torch_api")
    if sys.modules.get("bagua") is not sys.modules[_REAL]:
        _refuse_upstream()
    for alias, real in _PLACES.items():
        alias_package(alias=alias, real=real)
    if _refusals not in sys.meta_path:
        sys.meta_path.insert(0, _refusals)
    enable_bagua_tensors()
    _methods.apply()


def uninstall() -> None:
    """Undo :func:`install`."""
    _methods.undo()
    disable_bagua_tensors()
    if _refusals in sys.meta_path:
        sys.meta_path.remove(_refusals)
    if sys.modules.get("bagua") is sys.modules[_REAL]:
        for alias in _PLACES:
            drop_alias(alias)


def _refuse_upstream() -> None:
    loaded = sys.modules.get("bagua")
    spec = importlib.util.find_spec("bagua") if loaded is None else None
    # A folder of that name without __init__.py is found, too; it has no origin.
    place = getattr(loaded, "__file__", None) if spec is None else spec.origin
    if loaded is not None or place is not None:
        raise ArgumentError(
            where=f"import {__name__}",
            found=f"another package bagua ({place})",
            wanted="none, since this one would hide it",
            hint="Uninstall it, or use samba.distributed.bagua by its own name.",
        )


install()
