"""Executables that run one after the other as if they were one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal

from emulator.memory.budget import MeasuredMemory, measured_memory
from emulator.plans.calls import SLOW, direct_call, taker
from emulator.plans.fusion import shape_of, trace_planned
from emulator.plans.linked.parts import Part, Parts
from emulator.plans.traced import bytes_of, variables


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A call of one of the executables.

    Args:
        executable: Its place among the executables.
        takes: Places of its arguments among all values.
        gives: Places of its results.
        ends: Places of values that nobody reads after it.
    """

    executable: int
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Calls that follow one another, over numbered values: arguments first, then constants.

    Args:
        links: The calls in the order in which they run.
        made: How many values they make.
        results: Places of what the chain gives.
    """

    links: tuple[Link, ...]
    made: int
    results: tuple[int, ...]


def linked_call(
    chain: Chain, calls: Sequence[Callable[..., Any]], constants: Sequence[Any]
) -> Callable[..., Any]:
    """One function of several executables.

    Args:
        chain: How they follow one another.
        calls: The executables, functions of arrays.
        constants: What lies behind the arguments.

    Returns:
        A function of arrays that gives arrays. It holds signals back; who calls it ends that.
    """
    steps = tuple([(calls[k.executable], taker(k.takes), k.gives, k.ends) for k in chain.links])
    take = taker(chain.results)
    behind = (*constants, *[None] * chain.made)

    def call(*arrays: Any) -> Any:
        SLOW.begin()  # what is donated is gone, and the results are not stored yet
        values = [*arrays, *behind]
        for run, arguments, gives, ends in steps:
            for place, value in zip(gives, run(*arguments(values)), strict=True):
                values[place] = value
            for place in ends:
                values[place] = None
        return take(values)

    return call


_jit, _put = cast("Any", jax).jit, cast("Any", jax).device_put

Compile = Callable[[Any], Any]
"""Makes a ``jax.stages.Compiled`` of a ``jax.stages.Lowered``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linked:
    """A plan in parts that are compiled.

    Args:
        call: A function of arrays, as the whole plan's executable would be.
        chain: How the parts follow one another.
        constants: What they read that is neither an argument nor made by one of them.
        executables: Those of the parts, each once, in the order in which they run first.
        memory: What they take together; None where the backend does not say.
    """

    call: Callable[..., Any]
    chain: Chain
    constants: tuple[Any, ...]
    executables: tuple[Any, ...]
    memory: MeasuredMemory | None


def link(
    traced: ClosedJaxpr, divided: Parts, compiled: Compile, where: jax.sharding.Sharding
) -> Linked:
    """Compile parts and link them; takes up to seconds.

    Args:
        traced: The plan.
        divided: Its parts.
        compiled: Compiles one part.
        where: The device that runs it.

    Returns:
        What runs them.
    """
    jaxpr = traced.jaxpr
    given = (*jaxpr.invars, *jaxpr.constvars)
    place: dict[Any, int] = {v: number for number, v in enumerate(given)}
    made: dict[Hashable, int] = {}
    executables: list[Any] = []
    links: list[Link] = []
    last = _last_readers(divided)
    for number, part in enumerate(divided.parts):
        if part.form not in made:
            made[part.form] = len(executables)
            executables.append(compiled(_lowered(traced, part, where)))
        for v in part.gives:
            place[v] = len(place)
        ends = [v for v in (*part.takes, *part.gives) if last.get(v, number) <= number]
        links.append(
            Link(
                executable=made[part.form],
                takes=tuple([place[v] for v in part.takes]),
                gives=tuple([place[v] for v in part.gives]),
                ends=tuple([place[v] for v in ends]),
            )
        )
    memories = {form: measured_memory(executables[k]) for form, k in made.items()}
    memory = _memory(jaxpr.invars, divided, last, memories)
    results = [place.get(a, -1) if not isinstance(a, Literal) else -1 for a in divided.results]
    copied = [
        k
        for k, number in enumerate(results)
        if number < len(given) or results.index(number) < k  # no two results are one array
    ]
    if copied:
        atoms = [divided.results[k] for k in copied]
        gives = tuple(range(len(place), len(place) + len(copied)))
        links.append(
            Link(
                executable=len(executables),
                takes=tuple([place[a] for a in variables(atoms)]),
                gives=gives,
                ends=(),
            )
        )
        executables.append(compiled(_lowered_copies(atoms, where)))
        for k, number in zip(copied, gives, strict=True):
            results[k] = number
    chain = Chain(
        links=tuple(links), made=len(place) + len(copied) - len(given), results=tuple(results)
    )
    constants = tuple(_put(traced.consts, where))
    return Linked(
        call=linked_call(chain, [direct_call(e) for e in executables], constants),
        chain=chain,
        constants=constants,
        executables=tuple(executables),
        memory=memory,
    )


def _lowered(traced: ClosedJaxpr, part: Part, where: jax.sharding.Sharding) -> Any:
    function = traced.jaxpr.replace(
        constvars=[],
        invars=[*part.takes],
        outvars=[*part.gives],
        eqns=[*part.eqns],
        debug_info=traced.jaxpr.debug_info.with_unknown_names(),
    )
    return trace_planned(ClosedJaxpr(function, ()), part.donated, where).lower()


def _lowered_copies(atoms: Sequence[Any], where: jax.sharding.Sharding) -> Any:
    """A function that copies values and makes literals."""

    def run(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        given = iter(arrays)
        made: list[Any] = []
        for atom in atoms:
            literal = isinstance(atom, Literal)
            made.append(_array(atom.val, atom.aval) if literal else jnp.copy(next(given)))
        return tuple(made)

    jitted = _jit(run, keep_unused=True, out_shardings=where)
    return jitted.lower(*[shape_of(v, where) for v in variables(atoms)])


def _array(value: Any, form: Any) -> jax.Array:
    return jnp.asarray(value, form.dtype)  # pyright: ignore[reportUnknownMemberType]  # jax types it in part


def _last_readers(divided: Parts) -> dict[Any, int]:
    """The last part that reads a value; for a result one that there is not."""
    last: dict[Any, int] = {}
    for number, part in enumerate(divided.parts):
        last.update(dict.fromkeys(part.takes, number))
    return {**last, **dict.fromkeys(variables(divided.results), len(divided.parts))}


def _memory(
    arguments: Sequence[Any],
    divided: Parts,
    last: dict[Any, int],
    executables: dict[Hashable, MeasuredMemory | None],
) -> MeasuredMemory | None:
    """What parts take together: what lies between them, and the most that one has inside."""
    results = {*variables(divided.results)}
    between = alias = most = 0
    alive: list[list[Any]] = [[] for _ in divided.parts]
    for number, part in enumerate(divided.parts):
        found = executables[part.form]
        if found is None:
            return None
        alias += found.alias
        for v in part.gives:
            if v not in results:
                between += bytes_of([v])
                alive[last.get(v, number)].append(v)
        most = max(most, between + found.temp)
        between -= bytes_of(alive[number])
    return MeasuredMemory(
        argument=bytes_of(arguments),
        output=bytes_of(divided.results),
        alias=alias,
        temp=most,
    )
