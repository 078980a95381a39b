"""Nodes against the signatures of their ops: arguments, results, dimensions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from emulator.contract.convolutions import convolution_problems
from emulator.op_facts.table import Parameter, Signature, facts_of, signature_of
from pef_schema.program import Arg, DType, Node, Ref, Value
from pef_schema.program_facts import is_complex_node

_LETTERS: Mapping[type, str] = {
    Ref: "t",
    type(None): "-",
    bool: "b",
    int: "i",
    float: "f",
    complex: "c",
    str: "s",
    DType: "d",
}
"""What an argument is, by its type; a list is ``(`` with the letters of its items."""

_TAKEN: Mapping[str, frozenset[str]] = {
    "t": frozenset("tbifc"),  # torch makes tensors of numbers
    "i": frozenset("i"),
    "f": frozenset("fi"),
    "n": frozenset("fibc"),
    "b": frozenset("b"),
    "d": frozenset("d"),
    "s": frozenset("s"),
    "r": frozenset("fit"),
    "x": frozenset("tbifcsd-("),
}
"""Letters of arguments that a parameter takes, by its kind."""

_WORDS = {
    "t": "a tensor",
    "-": "None",
    "b": "True or False",
    "i": "a whole number",
    "f": "a number",
    "c": "a complex number",
    "s": "a string",
    "d": "a dtype",
    "(": "a list",
    "?": "of a foreign type",
}

_Form = tuple[object, ...]


class ArgumentCheck:
    """Checks nodes against the signatures of their ops; nodes of one form are checked once."""

    def __init__(self) -> None:
        self._known: dict[_Form, tuple[str, ...]] = {}

    def problems(self, node: Node, values: Sequence[Value]) -> Iterator[str]:
        """What is wrong with a node.

        Args:
            node: The node.
            values: Those of its graph.

        Returns:
            Reasons why the device cannot run it, none if it can as far as this check tells.
        """
        form: _Form = (
            node.op,
            len(node.outputs),
            tuple([_form(arg) for arg in node.args]),
            tuple([(name, _form(arg)) for name, arg in node.kwargs]),
        )
        problems = self._known.get(form)
        if problems is None:
            problems = self._known[form] = tuple(_form_problems(node))
        yield from problems
        if not problems and not facts_of(node.op).complex and is_complex_node(node, values):
            yield "it does not compute with complex numbers"
        if not problems:
            yield from _dimension_problems(node, values)
            yield from convolution_problems(node, values)


def _form(arg: Arg) -> str:
    if isinstance(arg, tuple):
        return "(" + "".join(sorted({_form(item)[0] for item in arg}))
    return _LETTERS.get(type(arg), "?")


def _form_problems(node: Node) -> Iterator[str]:
    """Problems that follow from the types of a node's arguments alone."""
    signature = signature_of(node.op)
    if signature is None:
        yield "the device has no operation of that name"
        return
    positional = [p for p in signature.parameters if not p.keyword]
    if len(node.args) > len(positional):
        yield f"{len(node.args)} arguments, it takes {len(positional)} at most"
    by_name = {p.name: p for p in signature.parameters}
    names = {p.name for p in positional[: len(node.args)]}
    for parameter, arg in zip(positional, node.args, strict=False):
        yield from _argument_problems(parameter, arg)
    for name, arg in node.kwargs:
        if name not in by_name:
            yield f"no argument is called {name[:80]}"
        elif name in names:
            yield f"argument {name} comes twice"
        else:
            names.add(name)
            yield from _argument_problems(by_name[name], arg)
    for parameter in signature.parameters:
        if not parameter.default and parameter.name not in names:
            yield f"argument {parameter.name} is missing"
    yield from _result_problems(node, signature)


def _argument_problems(parameter: Parameter, arg: Arg) -> Iterator[str]:
    form = _form(arg)
    if not _fits(parameter, form):
        what = _WORDS[form[0]]
        if len(form) > 1:
            what += " with " + ", ".join(_WORDS[letter] for letter in form[1:])
        yield f"argument {parameter.name} is {what}, expected {parameter.wanted}"


def _fits(parameter: Parameter, form: str) -> bool:
    if parameter.kind == "x" or (form == "-" and parameter.optional):
        return True
    letters = _TAKEN[parameter.kind]
    if not parameter.listed:
        return form in letters
    if form[0] != "(":
        return bool(parameter.length) and form in letters
    return all(item in letters or (item == "-" and parameter.optional_items) for item in form[1:])


def _result_problems(node: Node, signature: Signature) -> Iterator[str]:
    if not node.outputs:
        yield "it has no results"
    elif 0 <= signature.results < len(node.outputs):
        yield f"{len(node.outputs)} results, it gives {signature.results}"


_DIMENSIONS = frozenset({"dim", "dims"})
"""Arguments that name dimensions of the first argument."""

_ONE_MORE = frozenset(
    f"aten.{name}.default" for name in ("unsqueeze", "unsqueeze_copy", "stack", "_stack")
)
"""Ops whose dimension is one of their result, which has one more than their argument."""

_COUNTS = frozenset({"aten.tile.default"})
"""Ops whose argument of such a name says how often, not which."""


def _dimension_problems(node: Node, values: Sequence[Value]) -> Iterator[str]:
    """Dimensions that the first argument does not have."""
    signature = signature_of(node.op)
    first = node.args[0] if node.args else None
    tensors = [
        arg for arg in (first if isinstance(first, tuple) else (first,)) if isinstance(arg, Ref)
    ]
    if signature is None or not tensors or node.op in _COUNTS:
        return
    # The largest: torch joins empty vectors to tensors of any rank.
    rank = max(len(values[arg.value].shape) for arg in tensors) + (node.op in _ONE_MORE)
    named = dict(node.kwargs)
    for position, parameter in enumerate(signature.parameters):
        if parameter.kind != "i" or parameter.name not in _DIMENSIONS:
            continue
        arg = node.args[position] if position < len(node.args) else named.get(parameter.name)
        for dim in arg if isinstance(arg, tuple) else (arg,):
            if isinstance(dim, int) and not -max(rank, 1) <= dim < max(rank, 1):
                yield f"{parameter.name} {dim} is none of its {rank} dimensions"
