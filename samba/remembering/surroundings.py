"""What a call of ``forward`` may change outside of a model: put back, and then it has no digest."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from samba.abexit import SambaAtexit
from samba.remembering.stand_ins import Incomparable
from samba.support.tracing import told_tables
from samba.tracer.changed_state import Generators
from samba.tracer.torch_internals import global_hooks

_CPU = torch.device("cpu")


def _set_device(device: torch.device) -> None:
    torch.set_default_device(None if device == _CPU else device)


_SETTINGS: tuple[tuple[str, Callable[[], Any], Callable[[Any], Any]], ...] = (
    ("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
    ("torch's default device", torch.get_default_device, _set_device),
    ("whether gradients are recorded", torch.is_grad_enabled, torch.set_grad_enabled),
    (
        "autocast",
        lambda: torch.is_autocast_enabled("cpu"),
        lambda before: torch.set_autocast_enabled("cpu", before),
    ),
    (
        "the dtype of autocast",
        lambda: torch.get_autocast_dtype("cpu"),
        lambda before: torch.set_autocast_dtype("cpu", before),
    ),
    (
        "whether torch is deterministic",
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    (
        "torch's fast path of attention",
        torch.backends.mha.get_fastpath_enabled,
        torch.backends.mha.set_fastpath_enabled,
    ),
)


def _tables(tensors: Iterable[torch.Tensor]) -> list[tuple[str, Any]]:
    """Dicts and lists that code may change by functions of torch or of this project."""
    hooks = [(f"a {kind}", table) for kind, table in global_hooks().items()]
    return [
        *hooks,
        *(("samba.session", table) for table in told_tables()),
        ("what runs at exit", SambaAtexit._handlers),
        *(("an attribute of a constant", vars(tensor)) for tensor in tensors),
    ]


@contextmanager
def unchanged_surroundings(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """What is called inside finds torch's settings, the environment and generators as they are.

    They are so afterwards as well, even if it raises; so are global hooks, what the session was
    told, and attributes of constants.

    Args:
        tensors: The model's tensors that are neither parameters nor buffers.

    Raises:
        Incomparable: If it has changed one of them.
    """
    settings = [get() for _, get, _ in _SETTINGS]
    environment, generators = dict(os.environ), Generators()
    tables = _tables(tensors)
    tables_before = [copy.copy(table) for _, table in tables]
    changed: list[str] = []
    with torch.random.fork_rng(devices=[]):
        torch.rand(1)  # a seed that it gives once more changes the state then
        state = torch.get_rng_state()
        try:
            yield
        finally:
            if not torch.equal(torch.get_rng_state(), state):
                changed.append("torch's generator")
            for (name, get, put), before in zip(_SETTINGS, settings, strict=True):
                if get() != before:
                    changed.append(name)
                    put(before)
            if drew := generators.changed(Generators()):
                generators.put_back()
                changed += drew
            for (name, table), before in zip(tables, tables_before, strict=True):
                if _is_other(table, before):
                    changed.append(name)
                    table.clear()
                    table.extend(before) if isinstance(table, list) else table.update(before)
            if environment != os.environ:
                changed.append("os.environ")
                os.environ.clear()
                os.environ.update(environment)
    if changed:
        raise Incomparable("forward()", f"changes {', '.join(changed)}")


def _is_other(table: Any, before: Any) -> bool:
    """Whether a dict or a list has other entries than a copy of it: by identity."""
    if isinstance(table, list):
        return list(map(id, table)) != list(map(id, before))
    return [(k, id(v)) for k, v in table.items()] != [(k, id(v)) for k, v in before.items()]
