"""The records of every op that has a lowering: its facts, and its signature.

They lie in ``ops.json``, which ``tools/regen_op_facts.py`` writes, one op a line. The file is read
when something is asked for the first time.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from emulator.op_facts.facts import OpFacts

RECORDS = Path(__file__).with_name("ops.json")
"""The file: by an op's name its signature, and those of its facts that are not the default."""


@functools.cache
def _records() -> Mapping[str, Mapping[str, Any]]:
    return json.loads(RECORDS.read_text(encoding="utf-8"))


@functools.cache
def op_facts() -> Mapping[str, OpFacts]:
    """All ops that have a lowering, with their facts.

    Returns:
        A read-only mapping from full ATen names.

    Example:
        >>> op_facts()["aten.mul.Tensor"].linear_in
        (0, 1)
        >>> "aten.no_such_op.default" in op_facts()
        False
    """
    return MappingProxyType({name: OpFacts.of_record(r) for name, r in _records().items()})


@functools.cache
def signatures() -> Mapping[str, str]:
    """The signatures of all ops that have a lowering, as text.

    Returns:
        A read-only mapping from full names; ``emulator.op_facts.signatures`` reads the texts.
    """
    return MappingProxyType({name: r["signature"] for name, r in _records().items()})


def facts_of(op: str) -> OpFacts:
    """The facts of an op; of one that has no lowering, those of an op of which nothing is said.

    Args:
        op: Its full name.

    Example:
        >>> facts_of("aten.view.default").view, facts_of("somebody.elses.op").view
        (True, False)
    """
    return op_facts().get(op, _NOTHING_SAID)


_NOTHING_SAID = OpFacts()
