"""Lets every module of one package be imported under a second name, as the same object.

Python would load ``sambaflow.samba.utils`` from its file a second time, with a
second set of classes. The finder here answers for names below the alias only:
it imports the real module and hands that over.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class AliasFinder(MetaPathFinder):
    """Finds modules below ``alias`` as the modules of the same place below ``real``.

    Args:
        alias: Dotted name that users import.
        real: Dotted name of the package that answers.
    """

    def __init__(self, *, alias: str, real: str) -> None:
        self.alias, self.real = alias, real

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Import the real module behind ``fullname``; None for names outside the alias."""
        if not fullname.startswith(f"{self.alias}."):
            return None
        module = importlib.import_module(self.real + fullname.removeprefix(self.alias))
        self.register_loaded()
        # With an entry there, import would take the real module's own spec and run its file again.
        sys.modules.pop(fullname, None)
        return ModuleSpec(fullname, _Handover(module), is_package=hasattr(module, "__path__"))

    def register_loaded(self) -> None:
        """Enter every module of the real package loaded so far under its alias.

        A module that is entered never passes through the import machinery again,
        which would otherwise rebind it as an attribute of its parent: wrong where
        the parent keeps something else under that name, as ``samba.session`` does.
        """
        for name, module in list(sys.modules.items()):
            if name == self.real or name.startswith(f"{self.real}."):
                sys.modules[self.alias + name.removeprefix(self.real)] = module


class _Handover(Loader):
    """Puts a module that is loaded already in the place of the empty one that import makes."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        # Import takes what sys.modules holds now, so the real module keeps its own
        # __spec__ and __name__.
        sys.modules[module.__name__] = self._module


def alias_package(*, alias: str, real: str) -> ModuleType:
    """Make the package ``real`` importable as ``alias``, sub-modules included.

    Args:
        alias: Dotted name that users import; its own module calls this function.
        real: Dotted name of the package that answers.

    Returns:
        The module of ``real``, now also in ``sys.modules`` under ``alias``.
    """
    module = importlib.import_module(real)
    finder = next(
        (f for f in sys.meta_path if isinstance(f, AliasFinder) and f.alias == alias), None
    )
    if finder is None:
        finder = AliasFinder(alias=alias, real=real)
        sys.meta_path.insert(0, finder)
    finder.register_loaded()
    return module


def drop_alias(alias: str) -> None:
    """Undo :func:`alias_package`; modules that were imported under the alias stay as they are.

    Args:
        alias: What was given there.
    """
    sys.meta_path[:] = [
        f for f in sys.meta_path if not (isinstance(f, AliasFinder) and f.alias == alias)
    ]
    for name in list(sys.modules):
        if name == alias or name.startswith(f"{alias}."):
            del sys.modules[name]
