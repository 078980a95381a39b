"""Names of parameters, buffers, modules and values in SambaFlow's style.

A name is the lower-cased class name of the model, then the attribute path, joined by double
underscores: ``logreg__lin_layer__weight``.
"""

from __future__ import annotations

from torch import nn

_RECORD = "_samba_name"


def root_name(model: nn.Module, prefix: str | None = None) -> str:
    """First part of every name of a model.

    Args:
        model: The model.
        prefix: Name of the module it belongs to, for models that are converted in parts.

    Returns:
        The lower-cased class name, after the prefix if there is one.

    Example:
        >>> root_name(nn.Linear(2, 2), "encoder")
        'encoder__linear'
    """
    root = type(model).__name__.lower()
    return f"{prefix}__{root}" if prefix else root


def root_of(model: nn.Module) -> str:
    """First part of every name of a model, as it was converted or would be.

    Example:
        >>> root_of(nn.Linear(2, 2))
        'linear'
    """
    return model.__dict__.get(_RECORD) or root_name(model)


def join_name(root: str, path: str) -> str:
    """Name of what lies at a dotted path under a model.

    Example:
        >>> join_name("logreg", "lin_layer.weight")
        'logreg__lin_layer__weight'
    """
    return "__".join([root, *path.split(".")]) if path else root


def name_modules(model: nn.Module, root: str) -> None:
    """Sets ``module.name`` on the model and its submodules.

    A module that uses ``name`` for something of its own keeps it.

    Args:
        model: The model.
        root: Its name.
    """
    for path, module in model.named_modules():
        name = join_name(root, path)
        attributes = module.__dict__
        ours = "name" in attributes and attributes["name"] == attributes.get(_RECORD)
        if ours or not hasattr(module, "name"):
            attributes["name"] = name
        attributes[_RECORD] = name


class Namer:
    """Gives unique names: the second ``x`` is ``x_1``."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._next: dict[str, int] = {}

    def unique(self, name: str) -> str:
        """Return ``name``, or ``name_<n>`` with the smallest free ``n >= 1``."""
        candidate = name
        while candidate in self._used:
            self._next[name] = self._next.get(name, 0) + 1
            candidate = f"{name}_{self._next[name]}"
        self._used.add(candidate)
        return candidate
