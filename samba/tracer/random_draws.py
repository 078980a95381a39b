"""Operations that draw random numbers: dropout and its rate, which ones draw, draws behind a seed.

* Torch leaves no dropout in a graph where its rate is 0, and numbers in the place of the rate where
  it works in place or on whole channels. The rate is an argin, so that it can change without a
  compile, and a PEF must not depend on what it was then: here dropout stays at every rate. An
  operation that has a rate draws nothing where that is 0.
* Random numbers that ``forward`` draws from a generator that it has seeded or made are refused:
  torch draws the same numbers in each call, or those of a seed that is kept; the device draws
  others in each run. A trace draws nothing, so a generator changes its state only where ``forward``
  gives it another one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F

from emulator.op_facts.table import facts_of, op_facts
from pef_schema.program import Graph, Node, Ref
from samba.support.deviations import tell
from samba.support.marks import mark_of, marked
from samba.tracer.errors import TraceError
from samba.tracer.nodes import argument
from samba.tracer.torch_internals import outside_of_trace
from samba.tracer.traced import carries_gradient
from samba.tracer.user_code import calling_line, users_callers

# -- dropout while forward is traced ----------------------------------------------------

_ELEMENTS = (F.dropout, torch.dropout, torch.dropout_)
_CHANNELS = {F.dropout1d: (3, 2), F.dropout2d: (4, 3), F.dropout3d: (5, 4)}
"""Dimensions with and without a batch; 2-d dropout takes the latter for a batch of sequences."""
_FEATURES = (torch.feature_dropout, torch.feature_dropout_)
_FIXED = (
    *(F.alpha_dropout, torch.alpha_dropout, torch.alpha_dropout_),
    *(F.feature_alpha_dropout, torch.feature_alpha_dropout, torch.feature_alpha_dropout_),
)
"""Their results are scaled by a function of the rate, which is a number of the graph."""
_IN_PLACE = (torch.dropout_, torch.feature_dropout_)

DROPOUTS = frozenset((*_ELEMENTS, *_CHANNELS, *_FEATURES, *_FIXED))

ZERO_RATE = sys.float_info.min
"""Stands for rate 0 while tracing: at 0 the result would be the input itself, not a new tensor."""


def keep_dropout(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.Tensor | None:
    """Compute dropout with ``native_dropout``, which every trace keeps.

    Args:
        func: One of :data:`DROPOUTS`.
        args, kwargs: Its arguments.

    Returns:
        Its result, None where torch's own function does as well.
    """
    tensor, rate, train, inplace = _arguments(func, *args, **kwargs)
    if func in _ELEMENTS and not train and not inplace and 0 <= rate <= 1:
        return tensor  # torch does so, too; its exporter would make a new tensor of it
    if not train or not carries_gradient(tensor):
        return None
    if func in _FIXED:
        if rate:
            tell(
                "fixed-dropout-rate",
                f"{calling_line()}: {func.__name__} drops at rate {rate:g} in every run; neither "
                "session.run(train=False) nor hyperparam_dict changes it. Evaluate with a PEF "
                "compiled for inference",
            )
        return None
    if func in _ELEMENTS:
        if rate != 0 and not inplace:
            return None
        result = torch.native_dropout(tensor, rate or ZERO_RATE, True)[0]
    else:
        axes = _axes_that_are_dropped(func, tensor)
        if not axes:
            return None  # torch raises, or warns
        shape = (*tensor.shape[:axes], *(1,) * (tensor.dim() - axes))
        result = tensor * torch.native_dropout(tensor.new_ones(shape), rate or ZERO_RATE, True)[0]
    return tensor.copy_(result) if inplace else result


def _axes_that_are_dropped(func: Callable[..., Any], tensor: torch.Tensor) -> int:
    """How many of the first axes say what a dropout of channels drops; 0 if it takes none such."""
    if func in _FEATURES:
        return 2 if tensor.dim() >= 2 else 0
    batched, single = _CHANNELS[func]
    if tensor.dim() not in (batched, single):
        return 0
    return 1 if tensor.dim() == single and func is not F.dropout2d else 2


def _arguments(
    func: Callable[..., Any],
    input: torch.Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    train: bool | None = None,
) -> tuple[torch.Tensor, float, bool, bool]:
    training = training if train is None else train
    return input, p, training, inplace or func in _IN_PLACE


# -- which operations of a graph draw ---------------------------------------------------

_RATE_NAMES = frozenset({"p", "dropout_p", "dropout"})
"""What the argument is called."""

_PURE_DROPOUTS = frozenset({"aten.native_dropout.default", "aten.dropout.default"})
"""Operations that do nothing but drop: their rate is an argin even if it is 0."""


def rate_position(op: str) -> int | None:
    """Which argument of an operation is its dropout rate; None if it takes none."""
    return facts_of(op).rate


def rate_argins(graph: Graph) -> tuple[bool, ...]:
    """For each operation of a graph that takes a dropout rate, whether that is an argin."""
    positions = ((node, rate_position(node.op)) for node in graph.nodes)
    return tuple(isinstance(_rate(node, p), Ref) for node, p in positions if p is not None)


def _rate(node: Node, position: int) -> Any:
    """The rate that a node was given, by position or by name; None where it was given none."""
    if position < len(node.args):
        return node.args[position]
    return next((value for name, value in node.kwargs if name in _RATE_NAMES), None)


def drawing_nodes(
    nodes: Iterable[torch.fx.Node], rates: Sequence[bool]
) -> frozenset[torch.fx.Node]:
    """Nodes of an exported graph that draw random numbers.

    Args:
        nodes: All of its nodes, in order.
        rates: See :func:`samba.tracer.capture.trace_model`.
    """
    ops = op_facts()
    drawing: list[torch.fx.Node] = []
    rated = 0
    for node in nodes:
        op = str(node.target)
        facts = ops.get(op) if node.op == "call_function" else None
        if facts is None or not facts.random:
            continue
        position = facts.rate
        if position is None:
            drawing.append(node)
            continue
        is_argin = rated < len(rates) and rates[rated]
        rated += 1
        drops = op in _PURE_DROPOUTS or bool(argument(node, position, 0.0))
        if (is_argin or drops) and is_training(node):
            drawing.append(node)
    return frozenset(drawing)


def is_training(node: torch.fx.Node) -> bool:
    """Whether a node that takes a dropout rate is in training mode, and so uses it."""
    op = str(node.target)
    if op in _PURE_DROPOUTS:
        return argument(node, 2, True) is not False
    if op.startswith("aten.scaled_dot_product_attention"):
        return True
    return bool(argument(node, 6, False))


def drops_nothing(node: torch.fx.Node) -> bool:
    """Whether a node takes a dropout rate and was given 0."""
    position = rate_position(str(node.target))
    return position is not None and argument(node, position, 0.5) in (0, ZERO_RATE)


# -- draws behind a seed ----------------------------------------------------------------

_DRAWING = (
    *("rand", "normal", "dropout", "bernoulli", "multinomial", "poisson", "uniform", "exponential"),
    *("geometric", "cauchy", "gamma", "binomial", "rrelu", "gumbel", "lstm", "gru", "rnn"),
    *("scaled_dot_product", "multi_head_attention"),
)
"""Parts of the names of torch's functions that may draw; no other function is checked."""


class SeededNumbers(TraceError):
    """``forward`` draws from torch's generator after it has seeded it."""

    deviation = "seeded-in-forward"

    def __init__(self, line: str) -> None:
        super().__init__(
            where=line,
            reason="forward() draws random numbers here from a generator of torch's after setting "
            "its seed or state, which the device does not have: it draws new numbers in each run",
            hint="For the same numbers in each run, draw them once, before the model is compiled, "
            "and register them as a buffer. For new ones, as torch draws behind torch.seed(), "
            "leave the seed out of forward().",
        )


_OTHER = 0x5EED_0F_A_7ACE
"""Bits in which the seed of a trace differs from the one before it."""


class SeedWatch:
    """Knows whether a generator of torch has a state that ``forward`` has given it.

    For the time of a trace the generators have a seed that nobody else has given them. Numbers that
    other threads draw meanwhile change their state, but not their seed. One that is made in
    ``forward`` has none such.

    Args:
        generators: Those that the model has, beside torch's own.
    """

    def __init__(self, generators: Iterable[torch.Generator] = ()) -> None:
        self._seed: int | None = None
        self._generators = [torch.default_generator, *generators]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the generators; afterwards they have the states that they had."""
        with outside_of_trace():
            states = [generator.get_state() for generator in self._generators]
            self._seed = torch.initial_seed() ^ _OTHER
            for generator in self._generators:
                generator.manual_seed(self._seed)
        try:
            yield
        finally:
            self._seed = None
            for generator, state in zip(self._generators, states, strict=True):
                generator.set_state(state)

    def noted(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AbstractContextManager[Any]:
        """Note in the graph that a function may draw behind a seed, while it is called.

        Args:
            function: The function.
            args, kwargs: Its arguments.
        """
        name = getattr(function, "__name__", "").lower()
        if self._seed is None or not any(part in name for part in _DRAWING):
            return nullcontext()
        caller = next(users_callers(sys._getframe(1)), None)
        given = (value for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator))
        if caller is None or next(given, torch.default_generator).initial_seed() == self._seed:
            return nullcontext()  # the exporter goes through the graph once more, or no seed
        return marked(_SEEDED, f"{caller.f_code.co_filename}:{caller.f_lineno}")


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
        line = mark_of(node, _SEEDED)
        if line and not drops_nothing(node):
            raise SeededNumbers(line)
