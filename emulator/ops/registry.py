"""The registry of ops, each with its lowering and its facts.

Each op of a graph is a plain function of ``jax.Array``s, registered under its
ATen name together with its facts: what its gradient reads, whether it is cheap
enough to recompute, and the like. The backward pass is the ``jax.vjp`` of the very
same function, so an op has no second definition. ``tools/regen_op_facts.py`` copies
the facts to ``emulator.op_facts``, where they are available without jax.
"""

from __future__ import annotations

import enum
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Unpack

import jax

from emulator.op_facts.facts import OpFacts, StatedFacts
from pef_schema.errors import SambaError


class Channels(enum.Enum):
    """How an op takes part in a channels-last stretch of a graph.

    See ``emulator.lowering.channels_last``.
    """

    LAST = "last"
    """The lowering moves the channel axis to the end and back by itself."""
    ANY = "any"
    """Elementwise: with the axes of all arguments moved alike, those of the result move too. Or it
    has a lowering for channels last beside the usual one, ``last``."""


Form = jax.ShapeDtypeStruct
"""Shape and dtype of an array."""

ChannelsRule = Callable[[Sequence[Form], Form], Channels | None]
"""From the forms of an op's array arguments and of its first result to how it takes part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpec(OpFacts):
    """One op as the device knows it: its facts, which :class:`OpFacts` explains, and its lowering.

    Args:
        name: Full ATen name, ``namespace.op.overload``.
        lower: The op as a function of jax arrays. Arguments come as in the
            ATen schema: arrays for tensors, lists for lists, ``DType`` for dtypes.
            Returns an array or a tuple of arrays; shapes and dtypes must be the
            ones torch gives (a differing float dtype is cast by the caller).
        channels: How it takes part in a channels-last stretch, None if it does not; or a rule
            that says so from the forms of its arrays. Lowering alone asks for it.
        last: The op for arrays that are channels last, where it is another function.
    """

    name: str
    lower: Callable[..., Any]
    channels: Channels | ChannelsRule | None = None
    last: Callable[..., Any] | None = None


class DuplicateOp(SambaError):
    """An op name was registered a second time."""

    def __init__(self, *, name: str, first: str, second: str) -> None:
        self.name, self.first, self.second = name, first, second
        super().__init__(
            f"op {name} is registered by {first} and again by {second}; keep one of the two"
        )


_OPS: dict[str, OpSpec] = {}


def op(
    *names: str,
    channels: Channels | ChannelsRule | None = None,
    last: Callable[..., Any] | None = None,
    **facts: Unpack[StatedFacts],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the lowering of one or more ATen ops.

    Args:
        names: Full names such as ``"aten.add.Tensor"``.
        channels, last: See :class:`OpSpec`.
        facts: Fields of :class:`OpFacts`, without what follows from others if nothing else is said:
            a view moves; what moves reads nothing for its gradient, torch has it for complex
            numbers, and it is cheap if it does read nothing; an op that is not differentiable
            reads nothing either.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        DuplicateOp: If a name is taken.
    """
    stated = _implied_facts(facts) | facts

    def register(lower: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            if name in _OPS:
                first = _OPS[name].lower
                raise DuplicateOp(
                    name=name,
                    first=f"{first.__module__}.{first.__qualname__}",
                    second=f"{lower.__module__}.{lower.__qualname__}",
                )
            _OPS[name] = OpSpec(
                name=name,
                lower=lower,
                channels=channels,
                last=last,
                **stated,
            )
        return lower

    return register


pointwise = partial(op, cheap=True, channels=Channels.ANY)
""":func:`op` of an elementwise op, which goes along with any order of axes."""


of_matrices = partial(op, reads=(0,), complex=True, counted=False)
""":func:`op` of factors of matrices and what is made of them: nobody has counted what they take."""


def _implied_facts(facts: StatedFacts) -> StatedFacts:
    """What follows from the facts that are stated of an op."""
    if facts.get("view") or facts.get("moves"):
        cheap = facts.get("reads", ()) == ()
        return {"moves": True, "cheap": cheap, "reads": (), "complex": True}
    return {} if facts.get("differentiable", True) else {"reads": ()}


def load_ops() -> Mapping[str, OpSpec]:
    """Import every module of ``emulator.ops`` once and return all ops by name.

    Returns:
        A read-only view of the registry.
    """
    _import_all()
    return MappingProxyType(_OPS)


def has_foreign_ops() -> bool:
    """Whether an op was registered by code outside of ``emulator.ops``.

    Example:
        >>> has_foreign_ops()
        False
    """
    return any(not spec.lower.__module__.startswith("emulator.ops.") for spec in _OPS.values())


@cache
def _import_all() -> None:
    """Import every module of ``emulator.ops``; a program's plan asks for that many times."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"emulator.ops.{module.name}")  # by name: families import this file
