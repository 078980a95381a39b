"""Read names and keywords from the code that pages show instead of signatures."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping

from torch import nn

from tests.api.signatures import Signature

HOMES = {
    "np": "numpy",
    "utils": "samba.utils",
    "common_app_driver": "samba.utils.common.common_app_driver",
    "parse_app_args": "samba.utils.argparser.parse_app_args",
    "SambaLoader": "samba.sambaloader.SambaLoader",
}
"""What the code calls by a short name without importing it in the same block."""

PARSER = HOMES["parse_app_args"]
RUN = "samba.session.run"

_SUBJECT_IS_TORCH = re.compile(r"Functional Overrides|\(Tracing\)")
_HEADING = re.compile(r"^(?:Sample Code|Numpy/|Functional |Model Parameters|Various)")
_NAME = re.compile(r"\b(?:sambaflow\.)?samba((?:\.[A-Za-z_]\w*)+)")
_PACKAGE = re.compile(r"(?:samba(?:\.utils|\.session|\.functional|\.sambatensor|\.sambaloader)?)")


def uses(text: str, known: Iterable[Signature]) -> tuple[Signature, ...]:
    """Read the slides.

    Args:
        text: The slides.
        known: Signatures of other pages: they name what code gives by place.

    Returns:
        Names with the arguments that are given in code or described, in the page's order.
    """
    signatures = {signature.name: signature for signature in known}
    found: dict[str, Signature] = {}

    def add(name: str, arguments: Iterable[str] = ()) -> None:
        found[name] = found.get(name, Signature(name)).described(arguments)

    heading = ""
    for number, part in enumerate(text.split("```")):
        if number % 2 == 0:
            for line in part.splitlines():
                heading = line if _HEADING.match(line) else heading
            _prose(part, add)
            continue
        code = _python(part)
        if code is None:
            shown = re.match(r"\s*(\w+)\((.*)\)\s*$", part)
            if shown:
                name = HOMES[shown[1]]
                signatures[name] = found[name] = Signature.parse(name, shown[2])
            continue
        torch_too = bool(_SUBJECT_IS_TORCH.search(heading))
        for name, arguments in calls(code, signatures):
            if name.startswith("samba") or torch_too:
                add(name, arguments if name.startswith("samba") else _keywords(arguments))
        for node in ast.walk(code):
            match node:
                case ast.Assign(targets=[ast.Name("hyperparam_dict")], value=ast.Dict(keys=keys)):
                    add(RUN, [f"hyperparam_dict[{ast.literal_eval(k)}]" for k in keys if k])
                case ast.Compare(left=ast.Attribute(value=ast.Name("args"), attr=attribute)):
                    add(PARSER, [attribute])
                case _:
                    pass
    return tuple(_plain(signature) for signature in found.values())


def examples(text: str, known: Iterable[Signature]) -> tuple[Signature, ...]:
    """Read what a page of reference uses in its examples and names in its text.

    Args:
        text: The page.
        known: Signatures of all pages.

    Returns:
        Names, with the keywords that examples give; names of ``known`` included.
    """
    signatures = {signature.name: signature for signature in known}
    found: dict[str, Signature] = {}
    for match in re.finditer(r"^>>> +(.*)$", text, re.M):
        code = _python(match[1])
        for name, arguments in calls(code, signatures) if code else ():
            if name.startswith("samba"):
                found[name] = found.get(name, Signature(name)).described(_keywords(arguments))
    for name in _named(text):
        found.setdefault(name, Signature(name))
    return tuple(_plain(signature) for signature in found.values())


def calls(
    code: ast.Module, signatures: Mapping[str, Signature]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The calls in code that can be traced to a name.

    Args:
        code: A block of code.
        signatures: Known ones by name.

    Yields:
        The full name and the arguments: keywords by their names, what is given by place by the
        signature's names, or, marked by a ``?``, by the name of the variable.
    """
    homes = dict(HOMES)
    tensors: set[str] = set()
    for node in ast.walk(code):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                homes[alias.asname or alias.name.split(".")[0]] = (
                    module + alias.name if alias.asname or module else alias.name.split(".")[0]
                )
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made = ast.unparse(node.value.func)
            if re.match(r"samba\.\w+$", made):
                tensors |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    homes |= dict.fromkeys(tensors, "torch.Tensor")
    for node in ast.walk(code):
        if not isinstance(node, ast.Call):
            continue
        root, _, rest = ast.unparse(node.func).partition(".")
        if not re.fullmatch(r"[\w.]*", root + rest) or (root not in homes and not rest):
            continue
        full = _home(".".join(filter(None, (homes.get(root, root), rest))))
        if not full.startswith(("samba.", "torch.", "numpy.")):
            continue
        known = signatures.get(full)
        given: list[str] = []
        for place, argument in enumerate(node.args):
            if known is not None and place < len(known.positional):
                given.append(known.positional[place])
            elif isinstance(argument, ast.Name) and not argument.id.startswith("_"):
                given.append(f"?{argument.id}")
        yield full, (*given, *(k.arg for k in node.keywords if k.arg))


def _home(name: str) -> str:
    """One name for what may be imported by several paths."""
    name = name.removeprefix("sambaflow.")
    return re.sub(r"^samba\.utils\.utils\.", "samba.utils.", name)


def _keywords(arguments: Iterable[str]) -> tuple[str, ...]:
    return tuple(argument for argument in arguments if not argument.startswith("?"))


def _plain(signature: Signature) -> Signature:
    more = dict.fromkeys(argument.lstrip("?") for argument in signature.more)
    return Signature(signature.name, signature.shown, tuple(more))


def _prose(part: str, add) -> None:
    """Names, hyperparameters, options and attributes that slides mention outside of code."""
    for name in _named(part):
        add(name)
    for attribute in re.findall(r"^\.(\w+)(?:\(\))? \(", part, re.M):
        add(f"samba.SambaTensor.{attribute}")
    for key in re.findall(r"\(\*\*(\w+)\*\*\)", part):
        add(RUN, [f"hyperparam_dict[{key}]"])
    for option in re.findall(r"(?<!\w)--([a-z][a-z-]+)", part):
        add(PARSER, [option.replace("-", "_")])


def _named(text: str) -> Iterator[str]:
    """Names of samba, attributes of SambaTensors and of models that are no ``nn.Module``'s."""
    for match in _NAME.finditer(text):
        name = _home("samba" + match[1])
        if not _PACKAGE.fullmatch(name):
            yield name
    for attribute in re.findall(r"\b[sS]amba_?[tT]ensor\d?\.([a-z]\w*)", text):
        yield f"samba.SambaTensor.{attribute}"
    for attribute in re.findall(r"\bmodel\.([a-z]\w+)", text):
        if not hasattr(nn.Module, attribute) and not re.fullmatch(r"\w+\d", attribute):
            yield f"model.{attribute}"


def _python(block: str) -> ast.Module | None:
    """A block as code, None where it is something else."""
    try:
        return ast.parse(re.sub(r",\s*\.\.\.\)", ")", block))
    except SyntaxError:
        return None
