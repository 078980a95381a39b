"""What XLA makes of each family of cases: no value is to be computed by several kernels.

``bench/counts.json`` keeps, for each small case, the operations that XLA was given, those that its
executable holds with all fusions opened, and how often it computes the value that it computes most
often. ``python -m bench counts`` compares.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import samba
from bench.case import Case
from bench.hlo_values import computed
from bench.peers import ours
from emulator.kernels.rules import PLAIN, chosen_by
from emulator.plans import plan

__all__ = ["KEPT", "LIMIT", "MOST", "SLACK", "Fused", "fused", "kept_form", "problems"]

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
        found = compiled_or_kept(lowered, options)
        texts.append((lowered.as_text("hlo"), found.compiled.as_text()))
        return found

    plan.compiled_or_kept = noted
    try:
        yield texts
    finally:
        plan.compiled_or_kept = compiled_or_kept


def fused(case: Case) -> Fused:
    """Compile a case's full schedule; loads it into the global session and resets that.

    Args:
        case: The case.

    Returns:
        What XLA was given, and what it made.
    """
    samba.session.reset()
    try:
        # Kernels are the same on every processor here.
        with chosen_by(PLAIN), _texts() as texts, contextlib.redirect_stdout(io.StringIO()):
            convert, step = ours.prepare(case, case.model())
            step(convert(case.batches()[0]))
    finally:
        samba.session.reset()
    given, made = map(computed, texts[-1])
    return Fused(given=given.operations, made=made.operations, most=made.most, which=made.which)


def problems(found: Fused, kept: Mapping[str, int] | None) -> list[str]:
    """What is wrong with what XLA made, a line each.

    Args:
        found: What it made.
        kept: The same as a mapping, as it was before.

    Example:
        >>> kept = {"given": 100, "made": 80, "most": 1}
        >>> problems(Fused(given=100, made=81, most=1, which=""), kept)
        []
        >>> problems(Fused(given=100, made=90, most=3, which="tanh f32[8]"), kept)
        ['fusion: 90 operations of 100, kept 80 of 100', 'fusion: tanh f32[8] is computed 3 times']
        >>> problems(Fused(given=100, made=80, most=2, which="cosine f32[8]"), kept)
        ['fusion: cosine f32[8] is computed 2 times']
    """
    if kept is None:
        return ["fusion: nothing is kept"]
    lines = []
    before = kept["made"] / max(kept["given"], 1)
    if found.ratio > min(LIMIT, before + SLACK):
        was = f"{kept['made']} of {kept['given']}"
        lines.append(f"fusion: {found.made} operations of {found.given}, kept {was}")
    if found.most > min(MOST, kept["most"]):
        lines.append(f"fusion: {found.which} is computed {found.most} times")
    return lines


def kept_form(found: Fused) -> dict[str, int]:
    """What ``counts.json`` keeps of it.

    Args:
        found: What was found.

    Returns:
        Its numbers by name.
    """
    return {key: value for key, value in asdict(found).items() if key in KEPT}
