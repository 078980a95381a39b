"""Read names, arguments and defaults from the documented pages: ``python -m tests.api.read_pages``.

    python -m tests.api.read_pages FOLDER            write tests/api/signatures.txt
    python -m tests.api.read_pages FOLDER --check    exit 1 if that file is not what FOLDER says

The pages themselves are not part of the repository; the file that is made of them is, and holds
nothing else of them. A line is a name, its signature where the page shows one, and after a ``+``
the arguments that the page describes or uses without showing them in the signature.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.api.read_slides import examples, uses
from tests.api.signatures import SIGNATURES, Signature, written


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """How one page of reference writes its signatures.

    Args:
        title: Title in the made file.
        file: Name of the page's file.
        mark: What ends a line that is a signature or a heading.
        functions: What stands before the names of functions.
        classes: Its class's name, by the word that the page uses.
        methods: What stands before the names of that class's methods.
    """

    title: str
    file: str
    mark: str
    functions: str
    classes: dict[str, str]
    methods: str


REFERENCE = (
    Page(
        title="SambaSession",
        file="seed_session.txt",
        mark="¶",
        functions="samba.session.",
        classes={"SambaSession": "samba.SambaSession"},
        methods="samba.session.",
    ),
    Page(
        title="samba.utils",
        file="seed_utils.txt",
        mark="#",
        functions="samba.utils.",
        classes={},
        methods="",
    ),
    Page(
        title="SambaTensor",
        file="seed_sambatensor.txt",
        mark="#",
        functions="samba.",
        classes={"SambaTensor": "samba.SambaTensor"},
        methods="samba.SambaTensor.",
    ),
    Page(
        title="BaguaTensor",
        file="seed_bagua_tensor.txt",
        mark="",
        functions="bagua.",
        classes={"bagua.torch_api.tensor.BaguaTensor": "bagua.BaguaTensor"},
        methods="bagua.BaguaTensor.",
    ),
)
"""The pages of reference."""

SLIDES = ("Modelling slides", "seed_modeling_slides.txt")
"""Title and file of the slides, which show code instead of signatures."""

EXAMPLES = "Examples"
"""Title of what the pages use in examples and mention in their text without a signature."""

_HEAD = re.compile(
    r"^(?:- )?(?P<kind>class |static |classmethod |property )?(?P<name>[\w.]+)"
    r"(?:\((?P<arguments>.*)\))?(?P<rest>.*)$"
)
_DESCRIBED = re.compile(r"(?:^[\s•]*|\.)\*{0,2}(\w+)(?: \([^)]*\))? \N{EN DASH}")


def pages(folder: Path) -> dict[str, tuple[Signature, ...]]:
    """Read all pages.

    Args:
        folder: Where the pages lie.

    Returns:
        What each page documents, by its title, in the page's order.

    Raises:
        FileNotFoundError: If a page is missing.
    """
    read = {
        page.title: reference(page, (folder / page.file).read_text(encoding="utf-8"))
        for page in REFERENCE
    }
    title, file = SLIDES
    known = [signature for signatures in read.values() for signature in signatures]
    read[title] = uses((folder / file).read_text(encoding="utf-8"), known)
    known += read[title]
    shown: dict[str, Signature] = {}
    for page in REFERENCE:
        for used in examples((folder / page.file).read_text(encoding="utf-8"), known):
            shown[used.name] = shown.get(used.name, used).described(used.more)
    arguments = {signature.name: signature.arguments for signature in known}
    read[EXAMPLES] = tuple(
        used
        for used in shown.values()
        if used.name not in arguments or not set(used.more) <= set(arguments[used.name])
    )
    return read


def reference(page: Page, text: str) -> tuple[Signature, ...]:
    """Read a page of reference.

    Args:
        page: How it writes its signatures.
        text: The page.

    Returns:
        What it documents; a name that it has twice counts once.
    """
    found: dict[str, Signature] = {}
    current, prefix, in_class = "", page.functions, False
    for line in text.splitlines():
        head = _head(page, line)
        if head is None:
            if current:
                further = (*_DESCRIBED.findall(line), *_overload(current, line))
                found[current] = found[current].described(further)
            continue
        kind, name, arguments = head["kind"] or "", head["name"], head["arguments"]
        if kind == "class " and name in page.classes:
            current, prefix, in_class = page.classes[name], page.methods, True
            found[current] = Signature.parse(current, arguments)
        elif arguments is not None or kind == "property " or (in_class and not head["rest"]):
            current = prefix + name
            found.setdefault(current, Signature.parse(current, arguments))
        elif head["rest"]:  # a heading of several words: the class ends here
            current, prefix, in_class = "", page.functions, False
    return tuple(found.values())


def _head(page: Page, line: str) -> re.Match[str] | None:
    """A line that is a signature or a heading."""
    if page.mark:
        return _HEAD.match(line[: -len(page.mark)].rstrip()) if line.endswith(page.mark) else None
    head = _HEAD.match(line)
    shown = head and (head["kind"] or str(head["arguments"]).startswith("self"))
    return head if shown and head and not head["rest"] else None


def _overload(current: str, line: str) -> tuple[str, ...]:
    """Arguments of a further form of the current name, such as ``to(dtype) SambaTensor``."""
    form = re.match(rf"^{re.escape(current.rpartition('.')[2])}\((\w[\w, ]*)\) \w+$", line)
    return tuple(form[1].split(", ")) if form else ()


def main(argv: Iterable[str] | None = None) -> int:
    """Write the file of signatures, or compare it with the pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the pages lie")
    parser.add_argument("--check", action="store_true", help="compare and write nothing")
    args = parser.parse_args(None if argv is None else list(argv))
    text = written(pages(args.folder))
    if not args.check:
        SIGNATURES.write_text(text, encoding="utf-8")
        return 0
    if SIGNATURES.read_text(encoding="utf-8") == text:
        return 0
    print(f"{SIGNATURES.name} is not what the pages in {args.folder} say", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
