"""What the text of an optimized HLO module says of its instructions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) (?:\(.*)?(?:->.*)?\{$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|branch_computations)=(\{[^}]*\}|%[\w.\-]+)")
_OPERAND = re.compile(r"%([\w.\-]+)")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_LIBRARY = re.compile(r'"?kind"?:"?__(\w+?)_fusion')

MOVES = frozenset({"copy", "transpose", "reshape", "bitcast", "slice", "concatenate", "pad"})
"""Instructions that compute nothing."""

NAMED = ("convolution", "dot", "reduce-window", "scatter", "sort", "gather", "reduce")
"""Instructions that a fusion is named after, the first of them that it has."""

RENAMES = frozenset({"bitcast", "get-tuple-element"})
"""Instructions that pass on what they take."""

CONTAINERS = frozenset({"call", "while", "conditional"})
"""Instructions whose time is that of others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction.

    Args:
        name: Its name in the module.
        opcode: What it does, as HLO calls it.
        shape: Of its result, without layouts.
        operands: Names of what it takes.
        calls: Computations it calls.
        op_name: jax's name stack, empty where there is none.
        target: Of a custom call, the function; of a fusion that a library runs, the library.
    """

    name: str
    opcode: str
    shape: str
    operands: tuple[str, ...]
    calls: tuple[str, ...]
    op_name: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """Instructions by name, names by computation, and names of the instructions that take each."""

    instructions: Mapping[str, Instruction]
    computations: Mapping[str, tuple[str, ...]]
    taken_by: Mapping[str, list[str]]

    def within(self, name: str) -> list[Instruction]:
        """Instructions of the computations that one calls, and of those that they call."""
        found: list[Instruction] = []
        waiting = list(self.instructions[name].calls)
        while waiting:
            for inner in self.computations.get(waiting.pop(), ()):
                found.append(self.instructions[inner])
                waiting += found[-1].calls
        return found

    def kind(self, name: str) -> str:
        """What an instruction's time is spent on: ``dot``, ``convolution``, ``fusion``, …

        A fusion is named after the weightiest instruction in it, with what runs it where that is
        a library.
        """
        of = self.instructions[name]
        if of.opcode == "custom-call":
            return f"custom call {of.target}"
        if of.opcode != "fusion":
            return of.opcode
        inner = [i.opcode for i in self.within(name)]
        library = f" ({of.target})" if of.target else ""
        for opcode in NAMED[:3] if of.target else NAMED:
            if opcode in inner:
                return (
                    f"{opcode}{library}" if library or opcode in NAMED[:3] else f"fusion, {opcode}"
                )
        work = set(inner) - {"parameter", "constant", "tuple", "broadcast"}
        if work and work <= MOVES:
            return "transpose" if "transpose" in work else "copy"
        return f"fusion{library}"

    def says(self, name: str) -> str:
        """jax's name stack of an instruction, or of what it is made of where it has none."""
        names = [self.instructions[name].op_name, *(i.op_name for i in self.within(name))]
        # Parts of a reduction have a name without a stack.
        return next((n for n in names if "/" in n), "")

    def users(self, name: str) -> list[str]:
        """Instructions that take the result of one, and of those among them that rename it."""
        found: list[str] = []
        for user in self.taken_by.get(name, ()):
            renames = self.instructions[user].opcode in RENAMES
            found += [user, *(self.users(user) if renames else ())]
        return found


def parsed(text: str) -> Module:
    """Read a module.

    Args:
        text: As ``jax.stages.Compiled.as_text`` gives it.

    Returns:
        Its instructions.

    Example:
        >>> module = parsed('''HloModule jit_f
        ...
        ... %fused (p: f32[2,3]) -> f32[3,2] {
        ...   %p = f32[2,3]{1,0} parameter(0)
        ...   ROOT %t = f32[3,2]{1,0} transpose(%p), dimensions={1,0}, metadata={op_name="f/g"}
        ... }
        ...
        ... ENTRY %main (x: f32[2,3]) -> f32[3,2] {
        ...   %x = f32[2,3]{1,0} parameter(0)
        ...   ROOT %turn = f32[3,2]{1,0} fusion(%x), kind=kLoop, calls=%fused
        ... }''')
        >>> module.kind("turn"), module.says("turn"), module.instructions["turn"].shape
        ('transpose', 'f/g', 'f32[3,2]')
    """
    instructions: dict[str, Instruction] = {}
    computations: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if not line.startswith((" ", "}", "HloModule")) and line.endswith("{"):
            head = _COMPUTATION.match(line)
            if head is not None:
                current = computations.setdefault(head[2], [])
            continue
        found = _INSTRUCTION.match(line)
        if found is None:
            continue
        name, shape, opcode, rest = found.groups()
        arguments = rest.partition(")")[0]
        instructions[name] = Instruction(
            name=name,
            opcode=opcode,
            shape=re.sub(r"\{[^}]*\}|/\*.*?\*/", "", shape),
            operands=tuple(_OPERAND.findall(arguments)),
            calls=tuple(_names(_CALLED.findall(rest))),
            op_name=_first(_OP_NAME, rest),
            target=_first(_TARGET, rest) or _first(_LIBRARY, rest.replace("\\", "")),
        )
        current.append(name)
    taken_by: dict[str, list[str]] = {}
    for name, of in instructions.items():
        for operand in of.operands:
            taken_by.setdefault(operand, []).append(name)
    return Module(
        instructions=instructions,
        computations={name: tuple(inner) for name, inner in computations.items()},
        taken_by=taken_by,
    )


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""


def _names(lists: Iterable[str]) -> list[str]:
    return [name for text in lists for name in _OPERAND.findall(text)]
