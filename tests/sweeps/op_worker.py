"""Runs the variants of entries of torch's operator database, in a process that may die of them."""

from __future__ import annotations

import json
import os

from tests.fuzz.outcome import Outcome
from tests.opinfo import runner
from tests.opinfo.catalog import entry_named
from tests.opinfo.runner import SPARE as SPARE
from tests.processes import FAST_XLA
from tests.speed import keep_contexts
from tests.sweeps.op_variants import End, run, samples_of, variants


def prepare() -> None:
    """Make a process ready, whose programs compile as in the fast tests.

    They are thousands; the sweep is of what is traced and lowered, not of what XLA makes of it.
    """
    runner.prepare()
    flags = os.environ["XLA_FLAGS"]
    if FAST_XLA not in flags:
        os.environ["XLA_FLAGS"] = f"{FAST_XLA} {flags}"
        keep_contexts()


def attempt(name: str, _: bytes) -> Outcome:
    """Run all variants of an entry.

    Args:
        name: Its name.

    Returns:
        An outcome whose text is a JSON list: for each variant what is tried, and how it ended.
    """
    entry = entry_named(name)
    ended: list[tuple[str, str | tuple[str, str]]] = []
    for sample in samples_of(entry, 1):
        for ways in variants(entry, sample):
            found = run(entry, ways)
            case = f"{entry.name}, {ways[0].what}"
            ended.append((case, found.value if isinstance(found, End) else found))
    return Outcome(label="tried", text=json.dumps(ended))
