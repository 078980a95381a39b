"""State that a checkpointed part of ``forward`` changes: torch changes it twice in a step.

``torch.utils.checkpoint`` runs a part again in the backward pass, with all that it does to buffers.
The device keeps what the part computes, or computes it again, and changes buffers once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional as F

from pef_schema.printable import some_of
from samba.support.deviations import Deviations
from samba.tracer.torch_internals import changes_of
from samba.tracer.user_code import calling_line

_SHOWN = 4

_STATISTICS: Mapping[Callable[..., Any], tuple[int, int, int]] = {
    F.batch_norm: (1, 2, 5),
    torch.batch_norm: (3, 4, 5),
}
"""Places of the running mean, of the running variance and of ``training`` among arguments. Torch
counts no version of what its kernels of norms write."""

Versions = Mapping[str, tuple[int, int]]

Start = tuple[Versions, int]


class RepeatedState:
    """Tells once of buffers that checkpointed parts of a model change.

    Args:
        model: The model.
        deviations: Where it is told.
    """

    def __init__(self, model: torch.nn.Module, deviations: Deviations) -> None:
        self._model, self._deviations = model, deviations
        self._trained: list[torch.Tensor] = []

    @contextmanager
    def within(self) -> Iterator[None]:
        """While active, a part runs that torch would run again."""
        start = self.enter()
        yield
        self.leave(start)

    def enter(self) -> Start:
        """A part begins, perhaps within another: how things are before it."""
        return self._versions(), len(self._trained)

    def leave(self, start: Start) -> None:
        """End a part, and report the buffers that it has changed.

        Args:
            start: What :meth:`enter` gave.
        """
        before, first = start
        trained = {id(tensor) for tensor in self._trained[first:]}
        names = [
            name
            for name, now in self._versions().items()
            if before.get(name) != now or now[0] in trained
        ]
        if names:
            self._deviations.tell(
                "checkpointed-state",
                f"{calling_line()}: a checkpointed function changes {some_of(names, _SHOWN)}. "
                "Torch runs the function again in the backward pass, as far as gradients need it, "
                "and may change them a second time there; the device changes them once in a step, "
                "as without the checkpoint",
            )

    def note(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Note a function of torch that is being called, if it trains statistics.

        Args:
            func: The function.
            args, kwargs: Its arguments.
        """
        places = _STATISTICS.get(func)
        if places is None:
            return
        positions = dict(zip(("running_mean", "running_var", "training"), places, strict=True))
        passed = {n: args[i] if i < len(args) else kwargs.get(n) for n, i in positions.items()}
        if passed.pop("training"):
            self._trained += [tensor for tensor in passed.values() if tensor is not None]

    def _versions(self) -> Versions:
        """Which tensors the buffers are, and how often they have been changed."""
        return {n: (id(b), changes_of(b)) for n, b in self._model.named_buffers()}
