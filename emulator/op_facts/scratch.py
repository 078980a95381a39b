"""Memory that an op takes beside what it reads and makes.

The rules here count what is large: the scores of attention, the gates of recurrent layers, and the
windows of convolutions and pools where they are laid side by side. Which convolutions do that
depends on the processor as well (:mod:`emulator.kernels`); the rule here holds for convolutions of
few channels, which do it on every processor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from emulator.op_facts.node_arguments import NamedArgs
from emulator.op_facts.table import facts_of
from pef_schema.program import Gradient, Graph, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """Bytes beside those of arguments and results.

    Args:
        kept: Of what the op keeps for its gradient.
        forward: Of what it needs while it runs.
        backward: Of what its gradient needs while it runs.
    """

    kept: int = 0
    forward: int = 0
    backward: int = 0


_NONE = Scratch()

_FEW_CHANNELS = 16
"""Channels up to which the gradients of a convolution are products of its windows."""
_FEW_TAPS = 32
"""Taps times channels up to which a convolution itself is one."""
_STACKED = 16 << 20
"""Elements up to which windows are laid side by side."""


def scratch_of(graph: Graph | Gradient, node: Node) -> Scratch:
    """The memory that a node takes beside what it reads and makes.

    Args:
        graph: Its graph, or the custom gradient that it is of.
        node: The node.

    Returns:
        The bytes; none for an op without a rule.
    """
    kind = facts_of(node.op).scratch
    return _NONE if kind is None else _RULES[kind](NamedArgs(graph, node))


_LEAST_BLOCK, _STEP = 64, 16
"""Queries of the smallest block, and what their number is a multiple of."""
_MOST_BLOCKS = 4
"""More of them save little: four leave five eighths of all scores, eight nine sixteenths."""


def causal_blocks(queries: int, keys: int) -> tuple[tuple[int, int, int], ...]:
    """Blocks of queries by which causal attention leaves out what no query of a block sees.

    Args:
        queries, keys: How many there are.

    Returns:
        Begin and end of each block, and the number of keys that its queries see.

    Example:
        >>> causal_blocks(256, 256)
        ((0, 64, 64), (64, 128, 128), (128, 192, 192), (192, 256, 256))
        >>> causal_blocks(100, 100)
        ((0, 64, 64), (64, 100, 100))
    """
    even = -(-queries // (_MOST_BLOCKS * _STEP)) * _STEP
    size = max(_LEAST_BLOCK, even)
    begins = range(0, queries, size)
    return tuple((at, min(at + size, queries), min(at + size, queries, keys)) for at in begins)


def _attention(at: NamedArgs) -> Scratch:
    """The probabilities, which the gradient reads; then gradients of them."""
    q, k = at.shape(0), at.shape(1)
    if min(len(q), len(k)) < 2:
        return _NONE  # of a program that no device takes
    pairs = q[-2] * k[-2]
    if at.argument(5, "is_causal") and at.argument(3, "attn_mask") is None:
        pairs = sum((end - begin) * keys for begin, end, keys in causal_blocks(q[-2], k[-2]))
    scores = math.prod(q[:-2]) * pairs * _item_bytes(at)
    return Scratch(kept=scores, backward=scores)


def _convolution(at: NamedArgs) -> Scratch:
    x, weight, out = at.shape(0), at.shape(1), at.result
    spatial = len(weight) - 2
    if spatial < 1 or len(x) != spatial + 2 or x[1] != weight[1]:
        return _NONE  # groups, or one image without its axis
    windows = math.prod(weight[1:]) * x[0] * math.prod(out[2:])
    if windows > _STACKED:
        return _NONE
    size = windows * _item_bytes(at)
    return Scratch(
        forward=size if math.prod(weight[1:]) <= _FEW_TAPS else 0,
        backward=size if weight[1] <= _FEW_CHANNELS and math.prod(weight[2:]) > 1 else 0,
    )


def _max_pool(at: NamedArgs) -> Scratch:
    """What each place of the windows gets of the gradient."""
    kernel = at.argument(1)
    dims = int(at.op.partition("max_pool")[2][:1])
    sizes = kernel if isinstance(kernel, tuple) else (kernel,) * dims
    taps = math.prod([n for n in sizes if isinstance(n, int)])
    return Scratch(backward=taps * math.prod(at.result) * at.dtype(0).itemsize)


def _recurrent(gates: int) -> Callable[[NamedArgs], Scratch]:
    """The gates of each step and layer, and their gradients."""

    def of(at: NamedArgs) -> Scratch:
        layers, directions = at.argument(4), 2 if at.argument(7) is True else 1
        x, states = at.shape(0), [s[-1] for s in at.shapes(1) if s]
        count = layers if isinstance(layers, int) else 1
        size = gates * max(states, default=0)
        if at.is_projected:
            size += sum(states)  # the outputs before and after the projection
        size *= count * directions * math.prod(x[:-1])
        return Scratch(kept=size * _item_bytes(at), backward=size * _item_bytes(at))

    return of


def _item_bytes(at: NamedArgs) -> int:
    """Bytes of an element of what is computed: narrow types are added up in float32."""
    return max(at.dtype(0).itemsize, 4)


_RULES: Mapping[str, Callable[[NamedArgs], Scratch]] = MappingProxyType(
    {
        "attention": _attention,
        "convolution": _convolution,
        "max_pool": _max_pool,
        "lstm": _recurrent(4),
        # Those of inputs and of states apart, three of each.
        "gru": _recurrent(6),
        "rnn": _recurrent(1),
    }
)
"""By the name that an op's facts give."""
