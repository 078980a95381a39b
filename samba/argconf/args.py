"""``CommonArgs``, ``CompileArgs`` and ``RunArgs``: the command line as pydantic models.

They are made when first asked for, because pydantic is an extra. Their fields are the options
of the command line (see :mod:`samba.argconf.options`) under the names of their fields, with the
same defaults; further fields are kept.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from samba.argconf.options import COMMANDS, OPTIONS, Option
from samba.errors import MissingPackage

if TYPE_CHECKING:
    CommonArgs: Any
    CompileArgs: Any
    RunArgs: Any

__all__ = ["CommonArgs", "CompileArgs", "RunArgs"]

_made: dict[str, Any] = {}

_OF_ONE = frozenset({"pef"})
"""Options that every command has for itself: a run reads a PEF, a compile writes one."""


def __getattr__(name: str) -> Any:
    commands = {
        "CommonArgs": [],
        "CompileArgs": ["compile"],
        "RunArgs": [command for command in COMMANDS if command != "compile"],
    }
    if name not in commands:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _made:
        base = None if name == "CommonArgs" else __getattr__("CommonArgs")
        _made[name] = _model(name, base, commands[name])
    return _made[name]


def _model(name: str, base: Any, commands: list[str]) -> Any:
    options = [
        option
        for option in OPTIONS
        if (base is None and set(option.commands) == set(COMMANDS) and option.dest not in _OF_ONE)
        or (base is not None and set(option.commands) & set(commands))
    ]
    doc = f"Options of {', '.join(commands) or 'every command'}; further fields are kept."
    return model_of(name, options, module=__name__, doc=doc, base=base)


def model_of(
    name: str, options: Sequence[Option], *, module: str, doc: str, base: Any = None
) -> Any:
    """A pydantic model whose fields are options of the command line; further fields are kept.

    Args:
        name: Its name.
        options: The options.
        module: The module that it is of.
        doc: Its docstring.
        base: The model that it derives from; None for none.

    Raises:
        MissingPackage: pydantic is not installed.
    """
    try:
        pydantic = importlib.import_module("pydantic")
    except ModuleNotFoundError:
        raise MissingPackage(what=module, package="pydantic", extra="config") from None
    fields: dict[str, Any] = {
        option.dest: (Any, pydantic.Field(default_factory=lambda o=option: o.default))
        for option in options
        # A field would hide a method of every model, such as json(); it may still be given.
        if not hasattr(pydantic.BaseModel, option.dest)
    }
    if base is None:
        kind = {"__config__": pydantic.ConfigDict(extra="allow", protected_namespaces=())}
    else:
        kind = {"__base__": base}
    return pydantic.create_model(name, __module__=module, __doc__=doc, **kind, **fields)
