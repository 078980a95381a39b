"""How every pointwise op, activation and loss is called at its edges."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from emulator.op_facts.table import signature_of
from emulator.ops.registry import OpSpec, load_ops
from tests.emulator.ops.checks import torch_op

FAMILIES = frozenset(
    {
        "_promote",  # what it makes of functions of numbers
        "activation",
        "bessel",
        "compare",
        "pointwise",
        "pointwise_math",
        "polynomial",
        "regression",
        "special",
    }
)
"""Modules of ``emulator.ops`` whose ops compute element by element."""

NOT_POINTWISE = frozenset(
    {
        "aten.where.Scalar",  # its one tensor is a mask
        # It reads a row for each element; ``tests/emulator/ops/test_nan.py`` has it.
        "aten.multilabel_margin_loss.default",
    }
)


class Slot(enum.Enum):
    """What a tensor argument is filled with."""

    EDGES = "edges"
    MASK = "mask"
    """True and False by turns."""
    SIGNS = "signs"
    """1 and -1 by turns, of the type under test."""
    HALF = "half"
    """0.5, of the type under test."""
    UNIT = "unit"
    """Edges between 0 and 1."""
    FROZEN = "frozen"
    """Edges, of an argument that torch does not differentiate."""
    LABELS = "labels"
    """As SIGNS, of an argument that torch does not differentiate."""
    NUMBER = "number"
    """0.5 without dimensions."""

    @property
    def holds_edges(self) -> bool:
        """Whether it is combined with the others of the kind."""
        return self in (Slot.EDGES, Slot.UNIT, Slot.FROZEN)

    @property
    def frozen(self) -> bool:
        """Whether torch refuses to differentiate it."""
        return self in (Slot.FROZEN, Slot.LABELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of an op.

    Args:
        name: Registry name.
        args: Its arguments by position; a :class:`Slot` for a tensor.
        kwargs: Its arguments by keyword alone.
        integers: Whether the op takes whole numbers only.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    integers: bool = False

    @property
    def slots(self) -> list[Slot]:
        """What its tensors hold, in order."""
        return [a for a in self.args if isinstance(a, Slot)]

    @property
    def slow(self) -> bool:
        """Whether fewer numbers are tried."""
        return any(word in self.name for word in SLOW)

    def __str__(self) -> str:
        said = [a.value if isinstance(a, Slot) else repr(a) for a in self.args]
        said += [f"{k}={v!r}" for k, v in self.kwargs.items()]
        return f"{self.name.removeprefix('aten.')}({', '.join(said)})"


NAN, INF = math.nan, math.inf

NUMBERS: Mapping[str, tuple[Any, ...]] = {
    "other": (2.5, 0.0, -0.0, -INF, NAN),
    "value": (2.5, NAN),
    "fill_value": (2.5, NAN),
    "element": (0.5, NAN),
    "test_element": (0.5, NAN),
    "threshold": (0.5, -3.0),
    "min": (-0.5, -INF, NAN),
    "max": (0.5, INF, NAN),
    "weight": (0.25, 0.75, INF),
    "decimals": (2, -1),
    "rounding_mode": ("floor", "trunc", None),
    "n": (0, 1, 2, 5),
    "p": (1, 3),
    "x": (0.5, 2.0, -1.0),
    "self": (2.5, 0.0, -1.0),
    "log_input": (True, False),
    "full": (False,),
    "eps": (1e-8,),
    "reduction": (0,),
}
"""What is given for arguments that have no default and are not tensors, by their names."""

EXPONENTS = (0, 1, 2, 3, 4, -1, -2, 0.5, -0.5, 1.5, 0.25, 65, -3.5, INF, -INF, NAN)

MORE: Mapping[str, tuple[tuple[tuple[Any, ...], dict[str, Any]], ...]] = {
    "add.Tensor": (((Slot.EDGES, Slot.EDGES), {"alpha": 0.5}),),
    "addcmul.default": (((Slot.EDGES,) * 3, {"value": 0.5}),),
    "addcdiv.default": (((Slot.EDGES,) * 3, {"value": 0.5}),),
    "binary_cross_entropy.default": (((Slot.UNIT, Slot.UNIT, Slot.FROZEN, 0), {}),),
    "binary_cross_entropy_with_logits.default": (
        ((Slot.EDGES, Slot.EDGES, Slot.FROZEN, None, 0), {}),
        ((Slot.EDGES, Slot.HALF, None, Slot.FROZEN, 0), {}),
    ),
    "celu.default": (((Slot.EDGES, 2.0), {}),),
    "clamp.default": (
        ((Slot.EDGES, -0.5, 3.0), {}),
        ((Slot.EDGES, None, 0.5), {}),
        ((Slot.EDGES, 0.5), {}),
        ((Slot.EDGES, 3.0, -3.0), {}),
        ((Slot.EDGES, NAN, 3.0), {}),
        ((Slot.EDGES, -INF, INF), {}),
    ),
    "clamp.Tensor": (
        ((Slot.EDGES,) * 3, {}),
        ((Slot.EDGES, Slot.EDGES), {}),
        ((Slot.EDGES, None, Slot.EDGES), {}),
    ),
    "elu.default": (((Slot.EDGES, 0.5, 2.0, 0.5), {}), ((Slot.EDGES, 0.0), {})),
    "gelu.default": (((Slot.EDGES,), {"approximate": "tanh"}),),
    "hardshrink.default": (((Slot.EDGES, 0.0), {}), ((Slot.EDGES, 3.0), {})),
    "hardtanh.default": (((Slot.EDGES, -0.5, 6.0), {}),),
    "hinge_embedding_loss.default": (((Slot.EDGES, Slot.SIGNS, 0.5, 0), {}),),
    "huber_loss.default": (((Slot.EDGES, Slot.EDGES, 0, 0.5), {}),),
    "isclose.default": (((Slot.EDGES, Slot.EDGES, 1e-5, 1e-8, True), {}),),
    "kl_div.default": (((Slot.EDGES, Slot.EDGES, 0), {"log_target": True}),),
    "leaky_relu.default": (((Slot.EDGES, 0.0), {}), ((Slot.EDGES, 2.0), {})),
    "logit.default": (((Slot.EDGES, 0.25), {}), ((Slot.EDGES, 0.0), {})),
    "nan_to_num.default": (((Slot.EDGES, 1.0, 2.0, -2.0), {}),),
    "pow.Tensor_Scalar": tuple(((Slot.EDGES, e), {}) for e in EXPONENTS),
    "pow.Scalar": tuple(((b, Slot.EDGES), {}) for b in (0.0, 1.0, 2.0, -2.0, 0.5, INF, NAN)),
    "rrelu.default": (((Slot.EDGES, 0.125, 0.5, False), {}),),
    "smooth_l1_loss.default": (
        ((Slot.EDGES, Slot.EDGES, 0, 0.5), {}),
        ((Slot.EDGES, Slot.EDGES, 0, 0.0), {}),
    ),
    "softplus.default": (((Slot.EDGES, 2.0, 6.0), {}), ((Slot.EDGES, 0.5), {})),
    "softshrink.default": (((Slot.EDGES, 0.0), {}), ((Slot.EDGES, 3.0), {})),
    "sub.Tensor": (((Slot.EDGES, Slot.EDGES), {"alpha": 0.5}),),
}
"""Further calls beside the one that a signature gives, by name."""

ONLY_MORE = frozenset({"clamp.default", "clamp.Tensor"})
"""Ops that do not run with their defaults."""

SLOTS: Mapping[tuple[str, str], Slot] = {
    ("where", "condition"): Slot.MASK,
    ("masked_fill", "mask"): Slot.MASK,
    ("binary_cross_entropy", "self"): Slot.UNIT,
    ("binary_cross_entropy", "target"): Slot.UNIT,
    ("masked_fill", "value"): Slot.NUMBER,
    ("soft_margin_loss", "target"): Slot.LABELS,
    ("hinge_embedding_loss", "target"): Slot.SIGNS,
    ("margin_ranking_loss", "target"): Slot.SIGNS,
}
"""Tensors that hold something else than edges, by op and argument."""

SLOW = ("igamma", "gammainc", "zeta", "polynomial")
"""Parts of the names of ops that go in long loops."""

INTEGERS = ("bitwise", "__and__", "__or__", "__xor__", "shift", "gcd", "lcm")
"""Parts of the names of ops that take whole numbers only."""


def swept() -> list[OpSpec]:
    """Every op that the sweep must call; names of one function and one signature count once."""
    found: dict[Any, OpSpec] = {}
    for name, spec in sorted(load_ops().items()):
        family = spec.lower.__module__.rsplit(".", 1)[-1]
        if family in FAMILIES and name not in NOT_POINTWISE and not name.startswith("samba"):
            found.setdefault((spec.lower, signature_of(name)), spec)
    return sorted(found.values(), key=lambda spec: spec.name)


def calls_of(spec: OpSpec) -> Iterator[Call]:
    """The calls of an op: one from its schema for each number it must be given, and others."""
    short = spec.name.removeprefix("aten.")
    integers = any(word in short for word in INTEGERS)
    schema: Any = vars(torch_op(spec.name))["_schema"]
    places = [
        a
        for a in schema.arguments
        if a.name == "reduction" or not (a.has_default_value() or a.name in ("dtype", "generator"))
    ]
    for given in itertools.product(*(_choices(short, a) for a in places)):
        if short in ONLY_MORE:
            break
        named = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
        named.pop("generator", None)
        named.update(zip((a.name for a in places), given, strict=True))
        if integers:
            if any(isinstance(v, float) and not math.isfinite(v) for v in named.values()):
                continue
            named = {k: int(v) if isinstance(v, float) else v for k, v in named.items()}
        args = [named[a.name] for a in schema.arguments if not a.kwarg_only and a.name in named]
        kwargs = {a.name: named[a.name] for a in places if a.kwarg_only}
        yield Call(name=spec.name, args=tuple(args), kwargs=kwargs, integers=integers)
    for args, kwargs in MORE.get(short, ()):
        yield Call(name=spec.name, args=args, kwargs=kwargs, integers=integers)


def _choices(op: str, argument: Any) -> tuple[Any, ...]:
    if str(argument.type) == "Tensor":
        return (SLOTS.get((op.split(".")[0], argument.name), Slot.EDGES),)
    if argument.name == "exponent":
        return (2.5,)
    return NUMBERS[argument.name]
