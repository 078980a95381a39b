"""Numbers that ``forward`` takes out of tensors, traced back to those tensors.

``item()`` gives a symbolic number, and torch's graph says how others were computed from it. ``int``
and ``float`` have to give a number of Python: where it is only compared with other numbers, and the
graph is to have one outcome of that, they give any number with this outcome.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from samba.tracer.torch_internals import node_of

T = torch.Tensor
Symbol = torch.SymInt | torch.SymFloat | torch.SymBool
SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
Kind = type[int] | type[float]

_COMPUTED: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        **{f: f for f in (operator.lt, operator.le, operator.gt, operator.ge)},
        **{f: f for f in (operator.eq, operator.ne, operator.add, operator.sub, operator.mul)},
        **{f: f for f in (operator.truediv, operator.neg, operator.abs)},
        operator.and_: torch.logical_and,
        operator.or_: torch.logical_or,
        torch.sym_not: torch.logical_not,
        torch.sym_float: lambda number: number,
    }
)
"""Operations on numbers taken out of tensors, as operations on those tensors."""


class TakenNumbers:
    """The symbolic numbers of one trace."""

    def __init__(self) -> None:
        self._taken: dict[torch.fx.Node, T] = {}
        self._wide: dict[torch.fx.Node, T] = {}

    def note(self, tensor: T, number: Symbol) -> None:
        """Remember which tensor a number was taken out of.

        Args:
            tensor: The tensor.
            number: What ``item()`` gave.
        """
        node = node_of(number)
        if node is not None:
            self._taken[node[0]] = tensor

    def tensor_of(self, number: Symbol) -> T | None:
        """A number as a tensor, computed from the tensors that it came out of.

        Args:
            number: The number.

        Returns:
            A tensor of one element; None if the number comes from elsewhere too.
        """
        node = node_of(number)
        try:
            result = None if node is None else self._on_tensors(node[0])
        except _Foreign:
            return None
        return result if isinstance(result, T) else None

    def _on_tensors(self, node: Any) -> Any:
        if not isinstance(node, torch.fx.Node):
            if isinstance(node, (bool, int, float)):
                return node
            raise _Foreign
        tensor = self._taken.get(node)
        if tensor is not None:
            # As Python has it: whole numbers, or double precision. One tensor for one number, so
            # that it can be seen that n != n asks for NaN.
            if node not in self._wide:
                wide = torch.float64 if tensor.is_floating_point() else torch.int64
                dtype = tensor.dtype if tensor.dtype is torch.bool else wide
                self._wide[node] = tensor.detach().reshape(()).to(dtype)
            return self._wide[node]
        compute = _COMPUTED.get(node.target)
        if compute is None or node.kwargs:
            raise _Foreign
        return compute(*[self._on_tensors(argument) for argument in node.args])


class _Foreign(Exception):
    """A number comes from elsewhere than out of a tensor of the trace."""


# -- int and float ----------------------------------------------------------------------


def number_of(tensor: T, kind: Kind, *, exact: bool = False) -> T:
    """What ``int`` or ``float`` gives of a tensor, as a tensor.

    Args:
        tensor: One real element.
        kind: The function.
        exact: Whether whole numbers are compared with floats, for which torch takes few digits.

    Example:
        >>> number_of(torch.tensor([-2.75]), int)
        tensor(-2., dtype=torch.float64)
    """
    is_whole = kind is int and not tensor.is_floating_point()
    wide = torch.int64 if is_whole and not exact else torch.float64
    number = tensor.detach().reshape(()).to(wide)
    return number.trunc() if kind is int and not is_whole else number


COMPARES: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = MappingProxyType(
    {
        ast.Lt: operator.lt,
        ast.LtE: operator.le,
        ast.Gt: operator.gt,
        ast.GtE: operator.ge,
        ast.Eq: operator.eq,
        ast.NotEq: operator.ne,
    }
)
"""What compares two numbers, by how it is written."""


def is_number(value: object) -> bool:
    """Whether torch compares a tensor with a value as Python compares numbers."""
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 63
    return isinstance(value, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A number out of a tensor among numbers of Python, as in ``0 <= int(t) < n``.

    Args:
        terms: What is compared; None is the number out of the tensor.
        compares: What compares each term with the next one. With none the truth of the number is
            asked for.

    Example:
        >>> below = Comparison(terms=(0, None, 5), compares=(operator.le, operator.lt))
        >>> below.outcome(7), below.number_with(True, int), below.number_with(False, int)
        (False, 0, -1)
        >>> below.outcome(torch.tensor(3))
        tensor(True)
    """

    terms: tuple[bool | int | float | None, ...]
    compares: tuple[Callable[[Any, Any], Any], ...]

    @property
    def has_floats(self) -> bool:
        """Whether the number is compared with a float."""
        return any(isinstance(term, float) for term in self.terms)

    def outcome(self, number: Any) -> Any:
        """What the comparison says of a number.

        Args:
            number: A number; or a tensor of one element, for which there is one of the outcome.
        """
        if not self.compares:
            return number != 0
        terms = [number if term is None else term for term in self.terms]
        outcome: Any = True
        for left, compare, right in zip(terms, self.compares, terms[1:], strict=False):
            part = compare(left, right)
            if part is False:
                return False
            if part is not True:
                outcome = part if outcome is True else torch.logical_and(outcome, part)
        return outcome

    def number_with(self, outcome: bool, kind: Kind) -> int | float | None:
        """A number with an outcome; None if there is none.

        Args:
            outcome: The outcome.
            kind: Which type the number is to have.
        """
        others = [term for term in self.terms if term is not None]
        near = (number for other in others for number in _near(other, kind))
        return next((n for n in (kind(0), kind(1), *near) if self.outcome(n) is outcome), None)


def _near(number: float, kind: Kind) -> Iterator[int | float]:
    """Numbers of a type that are less than, equal to and greater than a number."""
    if kind is float:
        yield from (math.nextafter(number, -math.inf), number, math.nextafter(number, math.inf))
    elif math.isfinite(number):
        yield from (math.floor(number) + step for step in (-1, 0, 1))


# -- what stands for what Python computes ------------------------------------------------


def equal(a: T, b: T) -> T | bool:
    """Whether two tensors are equal, as ``torch.equal`` has it."""
    return bool(a.shape == b.shape) and (a == b).all()


def all_close(*args: Any, **kwargs: Any) -> T:
    """Whether two tensors are close, as ``torch.allclose`` has it."""
    return torch.isclose(*args, **kwargs).all()


def joined(values: Iterable[Any], *, is_any: bool) -> Any:
    """Several truths as one, as ``any`` and ``all`` do: what decides by itself is the last asked.

    Args:
        values: Tensors of one bool, or what Python has.
        is_any: Whether one of them suffices.

    Example:
        >>> joined([torch.tensor(False), 0, torch.tensor(True)], is_any=True)
        tensor(True)
        >>> joined([torch.tensor(False), 1], is_any=True)
        True
    """
    join = torch.logical_or if is_any else torch.logical_and
    result: Any = not is_any
    for value in values:
        if isinstance(value, T):
            result = join(result, value) if isinstance(result, T) else value
        elif bool(value) is is_any:
            return is_any
    return result
