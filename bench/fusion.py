"""What XLA makes of a case's full schedule: how much it computes, against what it was given.

Fusion may compute a value again in every kernel that reads it. The optimized program is taken
apart: fusions and calls are opened, and every operation gets the number of the value that it
computes, by its opcode, its attributes and the numbers of its operands. A value that several
kernels compute is there several times. ``bench/counts.json`` keeps operations, and the value that
is computed most often; ``python -m bench counts`` compares.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import samba
from bench.case import Case
from bench.peers import Prepared, ours
from emulator.native.library import without_native
from emulator.plans import plan
from emulator.plans.hlo_text import Instruction, parsed

LIMIT = 1.25
"""Operations of an executable over those that XLA was given, at most."""

MOST = 2
"""How often a value may be computed."""

KEPT = frozenset({"given", "made", "most"})
"""What is kept of a case."""

SLACK = 0.03
"""By how much the ratio may be above the one that is kept: processors differ a little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """What XLA was given for the full schedule of a case, and what it made of that.

    Args:
        given: Operations that compute numbers, calls opened.
        made: Those of the executable, fusions opened.
        most: How often the value is computed that is computed most often, see ``hlo_values``.
        which: That value.
    """

    given: int
    made: int
    most: int
    which: str

    @property
    def ratio(self) -> float:
        """Operations made over those given."""
        return self.made / max(self.given, 1)


@contextlib.contextmanager
def _texts() -> Iterator[list[tuple[str, str]]]:
    """Yields what XLA is given and what it makes, for each plan that is compiled meanwhile."""
    texts: list[tuple[str, str]] = []
    compiled_or_kept = plan.compiled_or_kept

    def noted(lowered: Any, options: dict[str, Any]) -> Any:
        outcome = compiled_or_kept(lowered, options)
        texts.append((lowered.as_text("hlo"), outcome.compiled.as_text()))
        return outcome

    plan.compiled_or_kept = noted
    try:
        yield texts
    finally:
        plan.compiled_or_kept = compiled_or_kept


@contextlib.contextmanager
def on_device(case: Case) -> Iterator[Prepared]:
    """A case in the global session, which is reset before and afterwards.

    Args:
        case: The case.

    Yields:
        The conversion of a batch and the training step; kernels are the same on every processor.
    """
    samba.session.reset()
    try:
        with without_native(), contextlib.redirect_stdout(io.StringIO()):
            yield ours.ours(case, case.model())
    finally:
        samba.session.reset()


def fused(case: Case) -> Fused:
    """Compile a case's full schedule, in the global session.

    Args:
        case: The case.

    Returns:
        What XLA was given, and what it made.
    """
    with _texts() as texts, on_device(case) as (convert, step):
        step(convert(case.batches()[0]))
    before, after = map(computed, texts[-1])
    return Fused(given=before.operations, made=after.operations, most=after.most, which=after.which)


def problems(outcome: Fused, before: Mapping[str, int] | None) -> list[str]:
    """What is wrong with what XLA made, a line each.

    Args:
        outcome: What it made.
        before: The same as a mapping, as it was before.

    Example:
        >>> before = {"given": 100, "made": 80, "most": 1}
        >>> problems(Fused(given=100, made=81, most=1, which=""), before)
        []
        >>> problems(Fused(given=100, made=90, most=3, which="tanh f32[8]"), before)
        ['fusion: 90 operations of 100, kept 80 of 100', 'fusion: tanh f32[8] is computed 3 times']
        >>> problems(Fused(given=100, made=80, most=2, which="cosine f32[8]"), before)
        ['fusion: cosine f32[8] is computed 2 times']
    """
    if before is None:
        return ["fusion: nothing is kept"]
    lines = []
    ratio = before["made"] / max(before["given"], 1)
    if outcome.ratio > min(LIMIT, ratio + SLACK):
        was = f"{before['made']} of {before['given']}"
        lines.append(f"fusion: {outcome.made} operations of {outcome.given}, kept {was}")
    if outcome.most > min(MOST, before["most"]):
        lines.append(f"fusion: {outcome.which} is computed {outcome.most} times")
    return lines


_MOVING = frozenset(
    {
        *("parameter", "constant", "iota", "tuple", "get-tuple-element", "copy", "bitcast"),
        *("bitcast-convert", "broadcast", "reshape", "transpose", "slice", "pad", "concatenate"),
        *("reverse", "convert", "dynamic-slice", "dynamic-update-slice", "opt-barrier"),
        *("after-all", "partition-id", "replica-id", "fusion", "call", "while", "conditional"),
        *("custom-call", "copy-start", "copy-done", "add-dependency", "get-dimension-size"),
    }
)
"""Opcodes that move numbers or cast them, that hold computations, and calls of libraries."""

_LIGHT = frozenset(
    {
        *("add", "subtract", "multiply", "maximum", "minimum", "negate", "abs", "compare"),
        *("select", "and", "or", "not", "xor", "clamp", "sign", "is-finite"),
        *("shift-left", "shift-right-logical", "shift-right-arithmetic"),
    }
)
"""One of these, of values that lie in memory, is made again as fast as it is read."""

_COUNTING = frozenset({"iota", "constant"})
"""Light operations on these alone read no memory: they are made again faster than they are read."""

_CUTTING = frozenset({"slice", "dynamic-slice"})

_IGNORED = re.compile(
    r", (?:metadata|backend_config|frontend_attributes|sharding|operand_precision|origin)="
    r"(?:\{(?:[^{}\"]|\"(?:\\.|[^\"\\])*\"|\{[^{}]*\})*\})"
)
_REGION = re.compile(r", (?:to_apply|select|scatter)=%?[\w.\-]+")
_SIZES = re.compile(r"\[([\d,]+)\]")
_LAYOUT = re.compile(r"(?<=\])\{[\d,:TSE()]*\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """What a program computes.

    Args:
        operations: Operations that compute numbers, fusions and calls opened.
        most: How often the value that is computed most often is; one light operation on values
            in memory does not count, since it is made again as fast as it is read, nor do light
            ones on iotas and constants alone. Parts are added up where kernels take different
            slices.
        which: What that is: its opcode and its shape.
    """

    operations: int
    most: int
    which: str


@functools.cache
def _facts(attributes: str) -> str:
    """Attributes of an instruction without names, layouts and what says where it comes from."""
    return _REGION.sub("", _LAYOUT.sub("", _IGNORED.sub("", attributes)))


def _shares(operations: Sequence[Instruction]) -> dict[str, float]:
    """What part of each operation's result a kernel needs, where it reads slices of it."""
    sizes = {op.name: _elements(op.shape) for op in operations}
    shares = {op.name: float(op.is_root) for op in operations}
    for op in reversed(operations):
        share = shares[op.name] = min(shares[op.name], 1.0)
        for operand in op.operands:
            part = sizes[op.name] / max(sizes[operand], 1) if op.opcode in _CUTTING else 1.0
            shares[operand] += share * part
    return shares


def _elements(shape: str) -> int:
    """Elements of an array's shape in text; 1 for others."""
    sizes = _SIZES.search(shape)
    return math.prod(int(size) for size in sizes[1].split(",")) if sizes else 1


@dataclass(slots=True)
class _Walk:
    """Numbers the values of a program."""

    computations: Mapping[str, Sequence[Instruction]]
    numbers: dict[tuple[object, ...], int] = field(default_factory=dict)
    operations: int = 0
    times: dict[int, float] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    positions: set[int] = field(default_factory=set)
    apart: list[str] = field(default_factory=list)

    def number(self, *key: object) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def through(self, name: str, arguments: Sequence[int], *, is_kernel: bool = False) -> int:
        """Number what a computation gives for arguments with these numbers.

        Args:
            name: The computation.
            arguments: The numbers.
            is_kernel: Whether it is a fusion's; else each of its operations is a kernel.
        """
        here: dict[str, int] = {}
        inside: set[str] = set()  # names of what this kernel computes
        shares = _shares(self.computations[name]) if is_kernel else {}
        result = 0
        for op in self.computations[name]:
            operands = tuple(here[o] for o in op.operands)
            if op.opcode == "parameter":
                value = arguments[int(op.literal)]
            elif op.opcode in ("fusion", "call"):
                value = self.through(op.calls[0], operands, is_kernel=op.opcode == "fusion")
            elif op.opcode == "copy":
                value = operands[0]
                inside.update(op.name for o in op.operands if o in inside)
            else:
                bodies = op.calls if op.opcode in ("while", "conditional") else ()
                self.apart += [b for b in bodies if b not in self.apart]
                regions = tuple(
                    [r.opcode for name in op.calls if not bodies for r in self.computations[name]]
                )
                # What is too large to be printed is taken for another one each time.
                literal = op.name if op.literal == "{...}" else op.literal
                facts = literal + _facts(op.attributes)
                value = self.number(op.opcode, op.shape, facts, regions, operands)
                if op.opcode in _COUNTING or (
                    op.opcode in _LIGHT | _MOVING
                    and operands
                    and self.positions.issuperset(operands)
                ):
                    self.positions.add(value)
                in_kernel = any(o in inside for o in op.operands)
                if is_kernel and (in_kernel or op.opcode not in _MOVING):
                    inside.add(op.name)
                if op.opcode not in _MOVING:
                    self.operations += 1
                    if value not in self.positions and (in_kernel or op.opcode not in _LIGHT):
                        self.times[value] = self.times.get(value, 0.0) + shares.get(op.name, 1.0)
                    self.texts.setdefault(value, f"{op.opcode} {op.shape}")
            here[op.name] = value
            if op.is_root:
                result = value
        return result


def computed(text: str) -> Computed:
    """What an optimized program computes.

    Args:
        text: It, as ``jax.stages.Compiled.as_text`` gives it; or what XLA is given, as
            ``jax.stages.Lowered.as_text("hlo")`` does.

    Returns:
        Its operations, and the value that is computed most often.

    Example:
        >>> facts = computed(\"\"\"HloModule m
        ... %twice (p: f32[8]) -> f32[8] {
        ...   %p = f32[8]{0} parameter(0)
        ...   %c = f32[8]{0} cosine(%p)
        ...   ROOT %n = f32[8]{0} negate(%c)
        ... }
        ... %again (p.1: f32[8]) -> f32[8] {
        ...   %p.1 = f32[8]{0} parameter(0)
        ...   ROOT %c.1 = f32[8]{0} cosine(%p.1)
        ... }
        ... ENTRY %main (x: f32[8]) -> (f32[8], f32[8]) {
        ...   %x = f32[8]{0} parameter(0)
        ...   %a = f32[8]{0} fusion(%x), kind=kLoop, calls=%twice
        ...   %b = f32[8]{0} fusion(%x), kind=kLoop, calls=%again
        ...   ROOT %t = (f32[8]{0}, f32[8]{0}) tuple(%a, %b)
        ... }\"\"\")
        >>> facts.operations, facts.most, facts.which
        (3, 2, 'cosine f32[8]')
    """
    module = parsed(text)
    computations = {
        name: [module.instructions[i] for i in inner] for name, inner in module.computations.items()
    }
    walk = _Walk(computations)
    walk.apart.append(module.entry)
    for name in walk.apart:  # which grows
        arguments = [walk.number(name, i) for i in range(len(computations[name]))]
        walk.through(name, arguments)
    value, most = max(walk.times.items(), key=lambda item: (item[1], -item[0]), default=(0, 0.0))
    return Computed(
        operations=walk.operations,
        most=math.ceil(most - 1e-6),
        which=walk.texts.get(value, ""),
    )
