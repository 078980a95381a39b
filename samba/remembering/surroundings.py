"""What a call of ``forward`` may change outside of a model: put back, and then it has no digest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from samba.remembering.stand_ins import Incomparable
from samba.tracer.changed_state import Generators

__all__ = ["unchanged_surroundings"]

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


@contextmanager
def unchanged_surroundings() -> Iterator[None]:
    """What is called inside finds torch's settings, the environment and generators as they are.

    They are so afterwards as well, even if it raises.

    Raises:
        Incomparable: If it has changed one of them.
    """
    settings = [get() for _, get, _ in _SETTINGS]
    environment, generators = dict(os.environ), Generators()
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
            if environment != os.environ:
                changed.append("os.environ")
                os.environ.clear()
                os.environ.update(environment)
    if changed:
        raise Incomparable("forward()", f"changes {', '.join(changed)}")
