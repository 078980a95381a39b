"""The entries of torch's own operator database, in a fixed order and with stable names."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

_DATABASE = "torch.testing._internal.common_methods_invocations"
DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int32": torch.int32,
    "int64": torch.int64,
    "bool": torch.bool,
    "float64": torch.float64,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
}
"""Dtypes that are tried, in the order of the coverage table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One operator of the database.

    Args:
        name: ``op`` or ``op.variant``; unique.
        info: Torch's OpInfo.
        dtypes: Names of the dtypes among ``DTYPES`` that torch supports on the CPU.
    """

    name: str
    info: Any
    dtypes: tuple[str, ...]


@cache
def load_entries() -> tuple[Entry, ...]:
    """All entries of ``op_db``, in its order."""
    with warnings.catch_warnings():
        # torch.testing's internals use deprecated parts of torch when they are imported.
        warnings.simplefilter("ignore")
        database: Any = importlib.import_module(_DATABASE)  # by name: pyright takes 5 s to read it
    # It makes random operators repeat themselves, which would hide that they are random.
    database.wrapper_set_seed = _call
    return tuple(_entries(database.op_db))


def _call(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return operator(*args, **kwargs)


def _entries(op_db: list[Any]) -> Iterator[Entry]:
    seen: dict[str, int] = {}
    for info in op_db:
        name = f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            name = f"{name}#{seen[name]}"
        supported = info.supported_dtypes("cpu")
        dtypes = tuple(key for key, dtype in DTYPES.items() if dtype in supported)
        yield Entry(name=name, info=info, dtypes=dtypes)


def entry_named(name: str) -> Entry:
    """The entry of that name.

    Raises:
        KeyError: If the database has none.
    """
    return {entry.name: entry for entry in load_entries()}[name]
