"""The steps of the schedule that a call of ``session.run`` asks for."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from emulator.errors import UnknownSection
from emulator.handler_errors import raise_error_of_handler
from emulator.plans.steps import StepKey, all_steps, find_kind
from pef_schema.errors import SambaError
from pef_schema.program import Call, Program, SectionKind
from samba.errors import ArgumentError, described, literal
from samba.session.request import SectionRequest

_SEE_LOG = "The .pef.log beside the PEF lists its sections, their types and call ids."

_DEEPEST = 128
"""Lists around a section id: each costs Python some of its stack."""


class NoOptimizer(SambaError):
    """OPT sections were asked of a program that was compiled without an optimizer."""

    def __init__(self, *, program: str) -> None:
        self.program = program
        super().__init__(
            f"session.run(section_types=...): found OPT, but program {program} was compiled "
            "without an optimizer, so it cannot change its weights. Compile and trace with one: "
            "samba.session.compile(model, inputs, optimizer)."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionChoice:
    """Steps to run.

    Args:
        steps: ``(section, step)`` pairs in the order to run.
        absent: Types that were asked for and that the program does not have.
    """

    steps: StepKey
    absent: tuple[SectionKind, ...] = ()


class SectionChooser:
    """Turns the selecting arguments of ``session.run`` into steps.

    Args:
        program: The loaded program.
        graph: Which graph of the program; None for all, in their order.
    """

    def __init__(self, program: Program, graph: int | None = 0) -> None:
        self._program = program
        self._graphs = tuple(range(len(program.graphs))) if graph is None else (graph,)
        self._calls = tuple(c for number in self._graphs for c in program.schedules[number].calls)
        self._present = tuple(
            kind
            for kind in SectionKind
            if any(kind in section.kinds for section in program.sections)
        )

    def settled(self, request: SectionRequest) -> SectionRequest:
        """A request with the same answer in one form, which can be a key.

        Args:
            request: Types, ids or bounds, as the script passed them.

        Returns:
            Section kinds and section ids as flat tuples, and the bounds.

        Raises:
            ArgumentError: If an argument is of the wrong type.
            UnknownSection: If a type or a call does not exist.
        """
        types, ids, *bounds = request
        for what, value in zip(("run_from_call_id", "run_until_call_id"), bounds, strict=True):
            self._check_call(what, value)
        kinds = tuple([self._kind(t) for t in _listed(types)])
        return SectionRequest(kinds, tuple(_numbers(ids, ())), *bounds)

    def choose(self, request: SectionRequest) -> SectionChoice:
        """Find the steps that a call asks for.

        Args:
            request: What :meth:`settled` has returned.

        Returns:
            The steps, in order.

        Raises:
            ArgumentError: If arguments exclude each other.
            UnknownSection: If a section does not exist.
            NoOptimizer: If OPT is asked of a training program without an optimizer.
        """
        kinds, sections, from_call, until_call = request
        bounded = from_call is not None or until_call is not None
        if sections and (kinds or bounded):
            other = f"section_types={_names(kinds)}" if kinds else "run_from/until_call_id"
            raise ArgumentError(
                where="session.run(section_ids=...)",
                found=f"section_ids={literal(list(sections))} together with {other}",
                wanted="one of the two",
                hint="Leave one out: section_ids name the sections and their order completely.",
            )
        if sections:
            return SectionChoice(steps=self._of_sections(sections))
        steps = self._of_calls(self._bounded(from_call, until_call)) if bounded else None
        if steps is None:
            parts = [all_steps(self._program, number) for number in self._graphs]
            steps = parts[0] if len(parts) == 1 else tuple(step for part in parts for step in part)
        if not kinds:
            return SectionChoice(steps=steps)
        absent = tuple(dict.fromkeys(k for k in kinds if k not in self._present))
        if SectionKind.OPT in absent and not self._program.inference:
            raise NoOptimizer(program=self._program.name)
        of = self._program.sections
        return SectionChoice(
            steps=tuple((s, k) for kind in kinds for s, k in steps if of[s].steps[k].kind is kind),
            absent=absent,
        )

    def _kind(self, name: Any) -> SectionKind:
        if isinstance(name, SectionKind):
            return name
        if not isinstance(name, str):
            raise ArgumentError(
                where="session.run(section_types=...)",
                found=described(name),
                wanted="names of section types, such as 'FWD'",
            )
        kind = find_kind(name)
        if kind is None:
            raise UnknownSection(
                found=[name],
                wanted=_names(self._present),
                what="session.run(section_types=...)",
                hint=_SEE_LOG,
            )
        return kind

    def _of_sections(self, ids: Sequence[int]) -> StepKey:
        sections = self._program.sections
        unknown = [i for i in ids if not 0 <= i < len(sections)]
        if unknown:
            raise UnknownSection(
                found=unknown,
                wanted=[f"sections 0 to {len(sections) - 1}"],
                what="session.run(section_ids=...)",
                hint=_SEE_LOG,
            )
        return tuple((i, k) for i in ids for k in range(len(sections[i].steps)))

    def _of_calls(self, calls: Sequence[Call]) -> StepKey:
        sections = self._program.sections
        return tuple((c.section, k) for c in calls for k in range(len(sections[c.section].steps)))

    def _check_call(self, what: str, value: Any) -> None:
        if value is None:
            return
        known = [c.call_id for c in self._calls]
        if not _is_one_of(value, known):
            raise UnknownSection(
                found=[value],
                wanted=[f"calls {known[0]} to {known[-1]}"] if known else ["no calls"],
                what=f"session.run({what}=...)",
                hint=_SEE_LOG,
            )

    def _bounded(self, from_call: int | None, until_call: int | None) -> tuple[Call, ...]:
        known = [c.call_id for c in self._calls]
        first = 0 if from_call is None else known.index(from_call)
        last = len(known) - 1 if until_call is None else known.index(until_call)
        if first > last:
            raise ArgumentError(
                where="session.run(run_from_call_id=..., run_until_call_id=...)",
                found=f"{from_call} and {until_call}",
                wanted="a first call that does not come after the last",
            )
        return self._calls[first : last + 1]


def frozen(value: Any) -> Any:
    """A copy of nested lists and tuples, which stays as it is when the caller changes a list."""
    if isinstance(value, list):
        return [frozen(item) for item in value]
    return tuple([frozen(item) for item in value]) if isinstance(value, tuple) else value


def _is_one_of(value: Any, known: Sequence[int]) -> bool:
    try:
        return value in known
    except Exception as error:  # a tensor of several numbers, or what a class of a script says
        raise_error_of_handler(error)
        return False


def _names(kinds: Sequence[SectionKind]) -> list[str]:
    return [kind.name for kind in kinds]


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _numbers(ids: Any, around: tuple[int, ...]) -> Iterator[int]:
    if ids is None:
        return
    itself = id(ids) in around
    if itself or len(around) > _DEEPEST:
        raise ArgumentError(
            where="session.run(section_ids=...)",
            found=f"a {type(ids).__name__} that holds itself"
            if itself
            else f"lists nested more than {_DEEPEST} deep",
            wanted="section ids: whole numbers, or lists of them",
        )
    for item in ids if isinstance(ids, (list, tuple)) else [ids]:
        if isinstance(item, (list, tuple)):
            yield from _numbers(item, (*around, id(ids)))
            continue
        try:
            yield operator.index(item)
        except Exception as error:  # what a class of a script says instead of a number
            raise_error_of_handler(error)
            raise ArgumentError(
                where="session.run(section_ids=...)",
                found=described(item),
                wanted="section ids: whole numbers, or lists of them",
            ) from None


def absence_of(kind: SectionKind) -> str:
    """What it means that a program has no section of a kind that was asked for.

    Args:
        kind: The kind.
    """
    if kind is SectionKind.ZEROGRAD:
        return (
            "this PEF has no ZEROGRAD section: gradients keep their values until BCKWD overwrites "
            "them, and an OPT without a BCKWD before it uses them again. "
            "session.compile(is_split_batch=True) makes a PEF that has one"
        )
    return f"this PEF has no {kind.name} section; there is nothing to run for it"
