"""Whether times of two programs may be compared, and which sections of theirs are the same.

A time says something about another one only if both programs are fed alike. Sections are matched by
name, and the name alone does not do: where a layer was put in, ``fwd_5`` is another layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.errors import BadBase, OtherProgram
from pef_schema import PefError, Program, read_pef
from pef_schema.program_facts import modules_of, owners, section_types

__all__ = ["Matched", "matched", "matched_files"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """Sections of two programs.

    Args:
        left_out: Why a section is not compared, by name: of base, of head or of both.
    """

    left_out: dict[str, str]

    def lines(self) -> list[str]:
        """What is left out, a line each.

        Example:
            >>> Matched(left_out={"fwd_5": "only in head"}).lines()
            ['  fwd_5: only in head; not compared']
        """
        return [f"  {name}: {why}; not compared" for name, why in self.left_out.items()]


def matched_files(base: Path, head: Path, *, name: str) -> Matched:
    """Match the sections of two PEFs.

    Args:
        base, head: The PEFs.
        name: What base is called in errors.

    Returns:
        What is not to be compared.

    Raises:
        BadBase: If base cannot be read.
        PefError: If head cannot.
        OtherProgram: If they are not fed alike.
    """
    try:
        before = read_pef(str(base))
    except PefError as error:
        raise BadBase(path=name, reason=error.what) from error
    return matched(before, read_pef(str(head)), name=name, head_name=str(head))


def matched(base: Program, head: Program, *, name: str, head_name: str) -> Matched:
    """Match the sections of two programs.

    Args:
        base, head: The programs.
        name, head_name: What they are called in errors.

    Returns:
        What is not to be compared.

    Raises:
        OtherProgram: If they are not fed alike, or one trains and the other does not.
    """
    before, after = _fed(base), _fed(head)
    for what in dict.fromkeys((*before, *after)):
        if before.get(what) != after.get(what):
            raise OtherProgram(
                base=name,
                head=head_name,
                what=what,
                found=after.get(what, "missing"),
                wanted=before.get(what, "missing"),
            )
    old, new = _sections(base), _sections(head)
    left_out = {
        section: "only in base" if section not in new else "only in head"
        for section in dict.fromkeys((*old, *new))
        if (section in old) != (section in new)
    }
    left_out |= {
        section: "other modules than in base"
        for section, of in new.items()
        if section in old and old[section] != of
    }
    untimed = {s.name for s in head.sections} - set(new)
    left_out |= dict.fromkeys(sorted(untimed), "not in the first schedule, which alone is timed")
    return Matched(left_out=left_out)


def _fed(program: Program) -> dict[str, str]:
    """What a program is for and what it is fed, in words."""
    found = {"use": "inference" if program.inference else "training"}
    for graph in program.graphs:
        for index in graph.inputs:
            value = graph.values[index]
            found[f"input {value.name} of {graph.name}"] = (
                f"{value.dtype.name.lower()} {list(value.shape)}"
            )
    return found


def _sections(program: Program) -> dict[str, tuple[str, frozenset[str]]]:
    """Type and modules by section of the full run."""
    owned = owners(program)
    sections = [program.sections[call.section] for call in program.schedules[0].calls]
    return {s.name: (section_types(s), frozenset(modules_of(program, s, owned))) for s in sections}
