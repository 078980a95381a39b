"""Random numbers that ``forward`` draws from a generator that it has seeded: refused.

Torch then draws the same numbers in each call, or those of a seed that is kept; the device draws
others in each run. A trace draws nothing, so torch's generator changes its state only where
``forward`` gives it another one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch.fx.traceback import annotate, preserve_node_meta

from samba.tracer.dropout_rates import drawing_nodes, drops_nothing
from samba.tracer.errors import TraceError
from samba.tracer.names import users_callers
from samba.tracer.torch_internals import outside_of_trace

__all__ = ["SeedWatch", "SeededNumbers", "refuse_seeded"]

_DRAWING = (
    *("rand", "normal", "dropout", "bernoulli", "multinomial", "poisson", "uniform", "exponential"),
    *("geometric", "cauchy", "gamma", "binomial", "rrelu", "gumbel", "lstm", "gru", "rnn"),
    *("scaled_dot_product", "multi_head_attention"),
)
"""What the names of torch's functions have in them that may draw: for others nobody looks."""


class SeededNumbers(TraceError):
    """``forward`` draws from torch's generator after it has seeded it."""

    deviation = "seeded-in-forward"

    def __init__(self, line: str) -> None:
        super().__init__(
            where=line,
            reason="forward() draws random numbers here from torch's generator, to which it has "
            "given a seed or a state before: torch draws what follows from that, and the device "
            "draws others in each run",
            hint="Draw once, before the model is compiled, and register the numbers as a buffer; "
            "or leave the seed out of forward().",
        )


class SeedWatch:
    """Knows whether torch's generator has a state that ``forward`` has given it."""

    def __init__(self) -> None:
        self._state = b""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While active, it is looked; afterwards the generator has the state that it had."""
        with outside_of_trace():
            state = torch.get_rng_state()
            torch.rand(1)  # a seed that is given once more is another state now
        self._state = _state()
        try:
            yield
        finally:
            self._state = b""
            torch.set_rng_state(state)

    def noted(self, function: Callable[..., Any]) -> AbstractContextManager[Any]:
        """Note in the graph that a function may draw behind a seed, while it is called.

        Args:
            function: The function.
        """
        name = getattr(function, "__name__", "").lower()
        if not self._state or not any(part in name for part in _DRAWING):
            return nullcontext()
        caller = next(users_callers(sys._getframe(1)), None)
        if caller is None or _state() == self._state:
            return nullcontext()  # the exporter goes through the graph once more, or no seed
        stack = ExitStack()
        stack.enter_context(preserve_node_meta())
        line = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        stack.enter_context(annotate({_SEEDED: line}))
        return stack


_SEEDED = "samba_seeded"
"""Key under which an exported node holds the line that draws behind a seed."""


def refuse_seeded(nodes: Iterable[torch.fx.Node]) -> None:
    """Raise where a graph draws behind a seed.

    Args:
        nodes: The nodes of an exported graph, in order.

    Raises:
        SeededNumbers: It does.
    """
    for node in drawing_nodes(nodes, ()):
        line = (node.meta.get("custom") or {}).get(_SEEDED)
        if line and not drops_nothing(node):
            raise SeededNumbers(line)


def _state() -> bytes:
    with outside_of_trace():
        return torch.get_rng_state().numpy().tobytes()
