"""The records of every op that has a lowering: its facts, and its signature.

They lie in ``ops.json``, which ``tools/regen_op_facts.py`` writes, one op a line. The file is read
when something is asked for the first time.

A signature says what arguments an op takes and how many results it gives. It is written as words:
``name:kind`` for each argument, ``=`` behind it where it may be left out, ``*`` before those that
keywords alone give, and the kinds of the results after ``>``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
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
        A read-only mapping from full names; :func:`parse_signature` reads the texts.
    """
    return MappingProxyType({name: r["signature"] for name, r in _records().items()})


def facts_of(op: str) -> OpFacts:
    """The facts of an op; the defaults of every fact if it has no lowering.

    Args:
        op: Its full name.

    Example:
        >>> facts_of("aten.view.default").view, facts_of("somebody.elses.op").view
        (True, False)
    """
    return op_facts().get(op, _NOTHING_SAID)


_NOTHING_SAID = OpFacts()


KINDS: Mapping[str, str] = MappingProxyType(
    {
        "t": "a tensor",
        "i": "a whole number",
        "f": "a number",
        "n": "a number",
        "b": "True or False",
        "d": "a dtype",
        "s": "a string",
        "r": "a number or an argin",
        "x": "nothing",
    }
)
"""Letters of kinds, with what an argument of that kind is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """What an op takes as one argument.

    Args:
        name: Its name.
        kind: A key of :data:`KINDS`: what it is, or what each item of a list is.
        listed: Whether it is a list.
        length: Items of a list that may also be one number, 0 where it may not.
        optional: Whether it may be None.
        optional_items: Whether items of a list may be None.
        default: Whether it may be left out.
        keyword: Whether it is given by keyword alone.
    """

    name: str
    kind: str
    listed: bool = False
    length: int = 0
    optional: bool = False
    optional_items: bool = False
    default: bool = False
    keyword: bool = False

    @property
    def wanted(self) -> str:
        """What it is, in words."""
        what = KINDS[self.kind]
        if self.listed:
            what = f"a list, each item {what}" + (" or None" if self.optional_items else "")
            what += ", or one for all" if self.length else ""
        return f"{what} or None" if self.optional else what


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What an op takes and gives.

    Args:
        parameters: Its arguments in order, those that keywords alone give last.
        results: How many results it has; -1 for a list of any length.
    """

    parameters: tuple[Parameter, ...]
    results: int


def parse_signature(text: str) -> Signature:
    """Read a signature.

    Args:
        text: Words as in the module's docstring.

    Example:
        >>> signature = parse_signature("self:t dim:i*1= * dtype:d?= > t")
        >>> [p.name for p in signature.parameters], signature.results
        (['self', 'dim', 'dtype'], 1)
        >>> signature.parameters[1].wanted
        'a list, each item a whole number, or one for all'
    """
    inputs, _, outputs = text.partition(">")
    parameters: list[Parameter] = []
    keyword = False
    for word in inputs.split():
        if word == "*":
            keyword = True
        else:
            parameters.append(_parameter(word, keyword=keyword))
    results = outputs.split()
    return Signature(parameters=tuple(parameters), results=-1 if "t*" in results else len(results))


def _parameter(word: str, *, keyword: bool) -> Parameter:
    name, _, kind = word.partition(":")
    default = kind.endswith("=")
    item, star, rest = kind.removesuffix("=").partition("*")
    optional = rest.endswith("?") if star else item.endswith("?")
    digits = rest.removesuffix("?")
    return Parameter(
        name=name,
        kind=item.removesuffix("?"),
        listed=bool(star),
        length=int(digits) if digits else 0,
        optional=optional,
        optional_items=bool(star) and item.endswith("?"),
        default=default,
        keyword=keyword,
    )


@functools.cache
def signature_of(op: str) -> Signature | None:
    """The signature of an op, None for an op that has no lowering.

    Args:
        op: Its full name.

    Example:
        >>> signature_of("aten.add.Tensor").parameters[-1].keyword
        True
        >>> signature_of("aten.no_such_op.default") is None
        True
    """
    text = signatures().get(op)
    return None if text is None else parse_signature(text)
