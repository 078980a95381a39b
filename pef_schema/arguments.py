"""A node's arguments as the flat list of tokens that a PEF stores, and back."""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence

from pef_schema.program import Arg, DType, Ref
from pef_schema.verify_rules import Report

_DOUBLE, _LONG = struct.Struct("<d"), struct.Struct("<q")
_DTYPES = {int(dtype): dtype for dtype in DType}


class ArgTag(enum.IntEnum):
    """Kind of a token of a node's arguments; pef.fbs says what goes with each."""

    NONE = 1
    REF = 2
    DTYPE = 3
    BOOL = 4
    INT = 5
    FLOAT = 6
    TEXT = 7
    LIST = 8
    COMPLEX = 10
    IMAGINARY = 11


# Plain ints: comparing with an enum member costs three times as much.
_NONE, _REF, _DTYPE, _BOOL, _INT, _FLOAT, _TEXT, _LIST, _COMPLEX, _IMAGINARY = map(int, ArgTag)


def put_arg(arg: Arg, tags: bytearray, bits: list[int], texts: list[str]) -> None:
    """Append the tokens of one argument, in prefix order.

    Args:
        arg: The argument; ``verify`` has bounded its nesting.
        tags: Receives an :class:`ArgTag` per token.
        bits: Receives a number per token.
        texts: Receives the strings.
    """
    kind = type(arg)
    if isinstance(arg, Ref):
        token = _REF, arg.value
    elif arg is None:
        token = _NONE, 0
    elif isinstance(arg, tuple):
        token = _LIST, len(arg)
    elif isinstance(arg, str):
        token = _TEXT, len(texts)
        texts.append(arg)
    elif isinstance(arg, float):
        token = _FLOAT, _bits(arg)
    elif isinstance(arg, complex):
        token = _COMPLEX, _bits(arg.real)
    else:
        token = (_DTYPE if kind is DType else _BOOL if kind is bool else _INT), int(arg)
    tags.append(token[0])
    bits.append(token[1])
    if isinstance(arg, complex):
        tags.append(_IMAGINARY)
        bits.append(_bits(arg.imag))
    elif isinstance(arg, tuple):
        for inner in arg:
            put_arg(inner, tags, bits, texts)


def _bits(number: float) -> int:
    return _LONG.unpack(_DOUBLE.pack(number))[0]


class ArgDecoder:
    """Makes arguments of tokens; equal references of a graph are one object.

    Args:
        report: Receives the problems.
        values: The number of values of the graph.
    """

    def __init__(self, report: Report, values: int) -> None:
        self.report = report
        self.values = values
        self.refs: dict[int, Ref] = {}

    def decode(
        self, tags: Sequence[int], bits: Sequence[int], texts: Sequence[str], where: str, index: int
    ) -> tuple[Arg, ...]:
        """Return the arguments that the tokens stand for.

        Args:
            tags: An :class:`ArgTag` per token.
            bits: A number per token.
            texts: The node's strings.
            where: Name of the graph, for messages.
            index: Index of the node, for messages.

        Returns:
            The arguments; empty if something is wrong, which then goes to the report.
        """
        if len(tags) != len(bits):
            return self.fail(where, index, f"{len(tags)} argument tags, {len(bits)} numbers")
        items: list[Arg] = []
        wanted = 0
        outer: list[tuple[list[Arg], int]] = []
        real: float | None = None
        for tag, number in zip(tags, bits, strict=True):
            if real is not None:
                if tag != _IMAGINARY:
                    break
                item = complex(real, *_DOUBLE.unpack(_LONG.pack(number)))
                real = None
            elif tag == _REF:
                item = self.refs.get(number)
                if item is None:
                    item = Ref(number)
                    if 0 <= number < self.values:
                        self.refs[number] = item
            elif tag == _INT:
                item = number
            elif tag == _NONE:
                item = None
            elif tag == _FLOAT:
                (item,) = _DOUBLE.unpack(_LONG.pack(number))
            elif tag == _COMPLEX:
                (real,) = _DOUBLE.unpack(_LONG.pack(number))
                continue
            elif tag == _BOOL and 0 <= number <= 1:
                item = number == 1
            elif tag == _DTYPE and number in _DTYPES:
                item = _DTYPES[number]
            elif tag == _TEXT and 0 <= number < len(texts):
                item = texts[number]
            elif tag == _LIST and number == 0:
                item = ()
            elif (
                tag == _LIST
                and 0 < number < len(tags)
                and len(outer) < self.report.limits.arg_depth
            ):
                outer.append((items, wanted))
                items, wanted = [], number
                continue
            else:
                return self.fail(where, index, f"argument tag {tag} with number {number}")
            items.append(item)
            while outer and len(items) == wanted:
                done = tuple(items)
                items, wanted = outer.pop()
                items.append(done)
        if real is not None:
            return self.fail(where, index, "a complex argument lacks its imaginary part")
        if outer:
            return self.fail(where, index, "a list argument has too few items")
        return tuple(items)

    def fail(self, where: str, index: int, what: str) -> tuple[Arg, ...]:
        """Note a problem of node ``index``."""
        self.report.add(f"{where} node {index}: {what}")
        return ()
