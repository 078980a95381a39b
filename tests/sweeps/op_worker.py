"""Runs the variants of entries of torch's operator database, in a process that may die of them."""

from __future__ import annotations

import json

from tests.fuzz.outcome import Outcome
from tests.opinfo.catalog import entry_named
from tests.opinfo.runner import SPARE as SPARE, prepare as prepare
from tests.sweeps.op_variants import End, run, samples_of, variants


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
