"""Results on the way from a node's arguments to its own results are bounded as values are.

A PEF says the shapes of all values, but not what a lowering makes in between: two values of 2^45
numbers each may meet in a table of 2^90. XLA ends the process where such a size overflows, so that
it is looked for before XLA sees it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from jax.extend.core import ClosedJaxpr, Jaxpr

from pef_schema.limits import LIMITS


class OversizedResult(ValueError):
    """An operation of jax makes something of an impossible size.

    Attributes:
        primitive: The operation.
        shape: What it makes.
    """

    def __init__(self, *, primitive: str, shape: tuple[int, ...]) -> None:
        self.primitive, self.shape = primitive, shape
        super().__init__(
            f"{primitive} makes {list(shape)} on the way, at most {LIMITS.file} bytes are allowed. "
            "Use smaller shapes"
        )


def check_traced_sizes(traced: ClosedJaxpr) -> None:
    """Refuse what XLA has no numbers for; takes time in proportion to the traced program.

    Args:
        traced: What jax is about to lower.

    Raises:
        OversizedResult: If a result is larger than the file of a PEF may be, a size of 0 left out.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> def table(n):
        ...     return (jnp.zeros((n, 1)) - jnp.zeros((1, n))).sum()
        >>> check_traced_sizes(jax.make_jaxpr(table, static_argnums=0)(2**10))
        >>> check_traced_sizes(jax.make_jaxpr(table, static_argnums=0)(2**30))
        Traceback (most recent call last):
        emulator.plans.traced.sizes.OversizedResult: sub makes [1073741824, 1073741824] on the \
way, at most 281474976710656 bytes are allowed. Use smaller shapes
    """
    pending: list[Any] = [traced.jaxpr]
    seen = {id(traced.jaxpr)}
    while pending:
        for equation in pending.pop().eqns:
            for result in equation.outvars:
                _check(equation.primitive.name, result.aval)
            for inner in functions_in(equation.params.values()):
                if id(inner) not in seen:
                    seen.add(id(inner))
                    pending.append(inner)


def _check(primitive: str, form: Any) -> None:
    shape = getattr(form, "shape", ())
    if shape and math.prod([n for n in shape if n]) * form.dtype.itemsize > LIMITS.file:
        raise OversizedResult(primitive=primitive, shape=tuple(shape))


def functions_in(parameters: Iterable[Any]) -> Iterator[Any]:
    """The programs inside of an operation's parameters: loops, branches, functions."""
    for parameter in parameters:
        if isinstance(parameter, ClosedJaxpr):
            yield parameter.jaxpr
        elif isinstance(parameter, Jaxpr):
            yield parameter
        elif isinstance(parameter, (tuple, list)):
            yield from functions_in(cast("Sequence[Any]", parameter))
