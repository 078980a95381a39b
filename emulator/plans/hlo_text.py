"""What XLA was given or has made, read from its text: instructions by computation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) (?:\(.*\) -> .*)?\{$")
_INSTRUCTION = re.compile(r"\s*(ROOT )?%?([\w.\-]+) = (\([^=]*\)|\S+) ([a-z][\w\-]*)\(")
_CALLED = re.compile(
    r", (?:calls|to_apply|body|condition|branch_computations|true_computation|false_computation"
    r"|select|scatter)=(\{[^}]*\}|[^,\s]+)"
)
_NAME = re.compile(r"[\w.\-]+")
_MARKED = re.compile(r"%([\w.\-]+)")
_COMMENT = re.compile(r"/\*.*?\*/")
_LAYOUT = re.compile(r"(?<=\])\{[\d,:TSE()]*\}")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_LIBRARY = re.compile(r'"?kind"?:"?__(\w+?)_fusion')

MOVES = frozenset({"copy", "transpose", "reshape", "bitcast", "slice", "concatenate", "pad"})
"""Instructions that compute nothing."""

NAMED = ("convolution", "dot", "reduce-window", "scatter", "sort", "gather", "reduce")
"""A fusion is named after the first of these instructions that it has."""

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
        literal: Of a constant or a parameter, what it is or which.
        calls: Computations it calls.
        attributes: All that stands behind the operands.
        is_root: Whether it is the result of its computation.
        op_name: jax's name stack, empty where there is none.
        target: Of a custom call, the function; of a fusion that a library runs, the library.
    """

    name: str
    opcode: str
    shape: str
    operands: tuple[str, ...]
    literal: str
    calls: tuple[str, ...]
    attributes: str
    is_root: bool
    op_name: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """Instructions by name, names by computation, and names of the instructions that take each.

    ``entry`` is the computation that runs.
    """

    entry: str
    instructions: Mapping[str, Instruction]
    computations: Mapping[str, tuple[str, ...]]
    taken_by: Mapping[str, list[str]]

    def within(self, name: str) -> list[Instruction]:
        """Instructions of the computations that one calls, and of those that they call."""
        instructions: list[Instruction] = []
        waiting = list(self.instructions[name].calls)
        while waiting:
            for inner in self.computations.get(waiting.pop(), ()):
                instructions.append(self.instructions[inner])
                waiting += instructions[-1].calls
        return instructions

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
        users: list[str] = []
        for user in self.taken_by.get(name, ()):
            renames = self.instructions[user].opcode in RENAMES
            users += [user, *(self.users(user) if renames else ())]
        return users


def parsed(text: str) -> Module:
    """Read a module.

    Args:
        text: As ``jax.stages.Compiled.as_text`` gives it; or ``jax.stages.Lowered.as_text("hlo")``.

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
    entry, current = "", list[str]()
    for line in _COMMENT.sub("", text).splitlines():
        if head := _COMPUTATION.match(line):
            current = computations.setdefault(head[2], [])
            entry = head[2] if head[1] else entry
        elif match := _INSTRUCTION.match(line):
            root, name, shape, opcode = match.groups()
            inside, attributes = _operands_and_rest(line, match.end())
            literal = inside if opcode in ("constant", "parameter") else ""
            instructions[name] = Instruction(
                name=name,
                opcode=opcode,
                shape=_LAYOUT.sub("", shape),
                operands=() if literal else _operands(inside),
                literal=literal,
                calls=tuple([n for c in _CALLED.findall(attributes) for n in _NAME.findall(c)]),
                attributes=attributes,
                is_root=root is not None,
                op_name=_first(_OP_NAME, attributes),
                target=_first(_TARGET, attributes)
                or _first(_LIBRARY, attributes.replace("\\", "")),
            )
            current.append(name)
    taken_by: dict[str, list[str]] = {}
    for name, of in instructions.items():
        for operand in of.operands:
            taken_by.setdefault(operand, []).append(name)
    return Module(
        entry=entry,
        instructions=instructions,
        computations={name: tuple(inner) for name, inner in computations.items()},
        taken_by=taken_by,
    )


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""


def _operands_and_rest(line: str, start: int) -> tuple[str, str]:
    """What stands between the parentheses that are open at a place, and what comes after."""
    depth = 1
    for place in range(start, len(line)):
        depth += (line[place] == "(") - (line[place] == ")")
        if not depth:
            return line[start:place], line[place + 1 :]
    return line[start:], ""


def _operands(inside: str) -> tuple[str, ...]:
    """Names of operands, which XLA marks in what it has made, beside their shapes if at all."""
    return tuple((_MARKED if "%" in inside else _NAME).findall(inside))
