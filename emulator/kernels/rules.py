"""The rule that chooses a kernel: what was measured on this processor, for the nearest shape.

``measured/<processor>.json`` holds measurements, made by ``python -m bench tune``: for each problem
the time of each candidate. Shapes are compared by the logarithms of their sizes. Where nothing of
the kind was measured near enough, and on processors that were not measured, the candidate that
needs no measurement is taken.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from emulator.kernels.problems import Problem
from emulator.kernels.target import Target, lowered_for
from emulator.processor import BEST, Processor, processor

__all__ = [
    "MEASURED",
    "PLAIN",
    "Measured",
    "Rule",
    "choose_in_this_process",
    "chosen_by",
    "kernels_for",
    "parse_rule",
    "present_rule",
    "rule_for",
    "rule_named",
    "rule_names",
    "rule_text",
]

NEAR = 3.0
"""Distance, in factors of two, up to which a measurement says something about another shape."""

GAIN = 0.96
"""Time over that of the plain candidate from which another one is taken: less is noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The times of all candidates for one problem.

    Args:
        sizes: The problem's.
        times: Microseconds by name of the candidate; the plain candidate is the first.
    """

    sizes: tuple[int, ...]
    times: Mapping[str, float]

    def distance(self, sizes: Sequence[int]) -> float:
        """Euclidean, of the sizes' binary logarithms."""
        pairs = zip(self.sizes, sizes, strict=True)
        return math.sqrt(sum(math.log2(a / b) ** 2 for a, b in pairs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What was measured on one processor.

    Args:
        name: Which rule it is: the processor's key.
        points: Measurements by the problems' category.
    """

    name: str
    points: Mapping[str, tuple[Measured, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def choose(self, problem: Problem, candidates: Sequence[str]) -> str:
        """Name of the candidate for a problem.

        Args:
            problem: The problem.
            candidates: Names of those that apply to it, the plain one first.

        Returns:
            One of them.

        Example:
            >>> from emulator.kernels.problems import Product
            >>> seen = Measured(sizes=(1, 64, 64, 64), times={"xla": 20.0, "onednn": 10.0})
            >>> rule = Rule(name="mine", points={"product float32 nn": (seen,)})
            >>> shape = Product(
            ...     dtype="float32", turned_a=False, turned_b=False, batch=1, m=80, k=64, n=64
            ... )
            >>> rule.choose(shape, ["xla", "onednn"]), rule.choose(shape, ["xla"])
            ('onednn', 'xla')
        """
        plain = candidates[0]
        if len(candidates) == 1:
            return plain
        points = self.points.get(problem.category, ())
        nearest = min(points, key=lambda point: point.distance(problem.sizes), default=None)
        if nearest is None or nearest.distance(problem.sizes) > NEAR:
            return plain
        known = [name for name in candidates if name in nearest.times]
        best = min(known, key=lambda name: nearest.times[name], default=plain)
        if plain in nearest.times and nearest.times[best] > GAIN * nearest.times[plain]:
            return plain
        return best


MEASURED = Path(__file__).with_name("measured")
"""The folder of committed rules."""

PLAIN = Rule(name="plain")
"""Chooses what needs no measurement."""


def rule_names() -> list[str]:
    """Keys of the processors that were measured."""
    return sorted(path.stem for path in MEASURED.glob("*.json"))


@functools.cache
def rule_named(name: str) -> Rule:
    """The committed rule of a processor.

    Args:
        name: Its key.

    Returns:
        The rule; one without measurements where that processor was not measured.

    Example:
        >>> rule_named("abacus-1-none").points
        mappingproxy({})
    """
    file = MEASURED.joinpath(f"{name}.json")
    if not file.is_file():
        return Rule(name=name)
    return parse_rule(name, file.read_text(encoding="utf-8"))


def parse_rule(name: str, text: str) -> Rule:
    """A rule from the text of its file.

    Args:
        name: The processor's key.
        text: JSON as :func:`rule_text` writes it.

    Returns:
        The rule.
    """
    categories: dict[str, list[dict[str, Any]]] = json.loads(text)["categories"]
    points = {
        category: tuple(
            Measured(sizes=tuple(found["sizes"]), times=MappingProxyType(found["times"]))
            for found in measured
        )
        for category, measured in categories.items()
    }
    return Rule(name=name, points=MappingProxyType(points))


def _rounded(times: Mapping[str, float]) -> dict[str, float]:
    return {name: round(time, 1) for name, time in times.items()}


def rule_text(rule: Rule, about: Mapping[str, str]) -> str:
    """A rule as the text of a file, a measurement a line.

    Args:
        rule: The rule.
        about: What it was measured on: processor and versions.

    Returns:
        JSON.
    """
    lines = []
    for category, points in sorted(rule.points.items()):
        rows = ",\n   ".join(
            json.dumps({"sizes": list(p.sizes), "times": _rounded(p.times)})
            for p in sorted(points, key=lambda p: p.sizes)
        )
        lines.append(f"  {json.dumps(category)}: [\n   {rows}\n  ]")
    head = json.dumps(dict(about), indent=1)[1:-2]
    return "{" + head + ',\n "categories": {\n' + ",\n".join(lines) + "\n }\n}\n"


def rule_for(found: Processor) -> Rule:
    """The rule of a processor, completed by that of one that has the same extensions.

    Args:
        found: The processor.

    Returns:
        Its own rule; categories that were not measured on it are those of another processor with
        the best extension that was measured and that it has, of several the one with the most
        measurements. :data:`PLAIN` where there is neither.
    """
    names = rule_names()
    own = rule_named(found.key) if found.key in names else None
    for extension in BEST:
        alike = [
            rule_named(name)
            for name in names
            if name.endswith(f"-{extension}") and name != found.key
        ]
        if alike and extension in found.isa:
            other = max(alike, key=lambda rule: sum(map(len, rule.points.values())))
            if own is None:
                return other
            return Rule(name=own.name, points=MappingProxyType({**other.points, **own.points}))
    return own or PLAIN


@contextmanager
def kernels_for(platform: str, chips: int = 1) -> Generator[None, None, None]:
    """While active, what is lowered for a platform takes kernels that were measured there.

    Args:
        platform: As ``jax.Device`` names it. Only processors were measured; others take the plain
            candidates.
        chips: How many run it. Several take the plain candidates, too: XLA divides what it knows,
            not calls into libraries.
    """
    on_host = Target.PROCESSOR if chips == 1 else Target.CHIPS
    target = on_host if platform == "cpu" else Target.OTHER
    kernels = nullcontext() if target is Target.PROCESSOR else chosen_by(PLAIN)
    with lowered_for(target), kernels:
        yield


_CHOSEN: ContextVar[Rule | None] = ContextVar("rule of kernels", default=None)


def present_rule() -> Rule:
    """The rule that chooses now: this processor's unless :func:`chosen_by` says otherwise."""
    return _CHOSEN.get() or _SETTLED.get("rule") or _own()


@functools.cache
def _own() -> Rule:
    return rule_for(processor())


_SETTLED: dict[str, Rule] = {}


def choose_in_this_process(rule: Rule | None) -> None:
    """Let a rule choose for all that this process lowers from now on.

    Args:
        rule: The rule; None for the processor's own again.
    """
    if rule is None:
        _SETTLED.clear()
    else:
        _SETTLED["rule"] = rule


@contextmanager
def chosen_by(rule: Rule) -> Generator[None, None, None]:
    """While active, another rule chooses for what this thread lowers.

    Args:
        rule: The rule.

    Example:
        >>> with chosen_by(PLAIN):
        ...     print(present_rule().name)
        plain
    """
    before = _CHOSEN.set(rule)
    try:
        yield
    finally:
        _CHOSEN.reset(before)
