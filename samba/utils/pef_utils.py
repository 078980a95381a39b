"""Facts that an app stores in its PEF about itself and reads back."""

from __future__ import annotations

import ast
import difflib
import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pef_schema import read_pef
from pef_schema.printable import some_of
from samba.argconf.parsed import looked_at
from samba.errors import SambaError
from samba.support.given import mapping_of
from samba.version import __version__

__all__ = ["MissingPefInfo", "PefInfoStruct", "get_pef_info", "get_pefmeta", "get_pefmeta_dict"]

_SHOWN = 8
"""Keys that a message lists; the error's ``present`` holds all of them."""


class MissingPefInfo(SambaError, ValueError):
    """A PEF does not hold keys that were asked for.

    Args:
        pef: Path of the PEF.
        missing: Keys that it does not hold.
        present: Keys that it holds.
    """

    def __init__(self, *, pef: str, missing: Sequence[str], present: Sequence[str]) -> None:
        self.pef, self.missing, self.present = pef, tuple(missing), tuple(present)
        near = [k for m in missing for k in difflib.get_close_matches(m, self.present, n=3)]
        shown = some_of(list(dict.fromkeys([*near, *self.present])), most=_SHOWN)
        super().__init__(
            f"{pef}: found no metadata for {', '.join(missing)}; it holds "
            f"{shown or 'none'}. Pass pef_metadata={{...}} with these keys to "
            "samba.session.compile(...) and compile again."
        )


@dataclass(frozen=True, slots=True)
class PefInfoStruct:
    """A key to read from a PEF, with what is known before.

    Args:
        default_when_mock: Its value when there is no device; the emulator never needs it.
    """

    default_when_mock: Any = None


def get_pefmeta(args: Namespace, model: torch.nn.Module) -> dict[str, str]:
    """Describes an app for ``session.compile(..., pef_metadata=...)``.

    Args:
        args: The parsed arguments.
        model: The model.

    Returns:
        Every argument as text, the model's printed form under ``"model"`` and the version under
        ``"samba_version"``. Arguments that are not data, such as functions, are left out.

    Example:
        >>> get_pefmeta(Namespace(batch_size=8), torch.nn.ReLU())["batch_size"]
        '8'
    """
    return get_pefmeta_dict(looked_at(args), model)


def get_pefmeta_dict(args: Mapping[str, Any], model: torch.nn.Module) -> dict[str, str]:
    """Does what :func:`get_pefmeta` does, for arguments in a dict."""
    given = mapping_of(args, "get_pefmeta(args)", "parsed arguments, or a dict of them")
    described = {key: _text(value) for key, value in given.items() if _is_data(value)}
    described["model"] = repr(model)
    described["samba_version"] = __version__
    return described


def get_pef_info(pef: str | os.PathLike[str], keys: Mapping[str, PefInfoStruct]) -> dict[str, Any]:
    """Reads metadata back from a PEF.

    Metadata are text. Text that is a Python literal is read as one, so numbers, booleans, None,
    lists and dicts of these come back as they were; other text stays text.

    Args:
        pef: Path of the PEF.
        keys: What to read.

    Returns:
        Values by key, in the order of ``keys``.

    Raises:
        MissingPefInfo: A key is not in the PEF. It is a ``ValueError``.
        PefError: The file is not an intact PEF.
    """
    metadata = dict(read_pef(pef).metadata)
    missing = [key for key in keys if key not in metadata]
    if missing:
        raise MissingPefInfo(pef=os.fspath(pef), missing=missing, present=list(metadata))
    return {key: _value(metadata[key]) for key in keys}


def _is_data(value: Any) -> bool:
    """Whether a value has a text form that says what it is, and the same one in every process."""
    if isinstance(value, Mapping):
        return all(_is_data(part) for pair in value.items() for part in pair)
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(_is_data(part) for part in value)
    return value is None or isinstance(value, (str, int, float, os.PathLike))


def _text(value: Any) -> str:
    if isinstance(value, (set, frozenset)):
        return str(sorted(value, key=str))
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
