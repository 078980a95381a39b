"""Every documented name and argument of the front end, by page, from ``signatures.txt``.

``samba.session.x`` is a method or property of a session, ``samba.SambaTensor.x`` of a tensor; a
name in brackets, such as ``samba.session.run(train)``, is an argument. :mod:`tests.api.read_pages`
makes the file from the pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.api.signatures import SIGNATURES, Signature, read


def names(pages: Mapping[str, Iterable[Signature]]) -> dict[str, tuple[str, ...]]:
    """Names by page, each with its arguments behind it, on the first page that has it.

    Args:
        pages: Signatures by the title of their page.
    """
    seen: set[str] = set()
    found: dict[str, tuple[str, ...]] = {}
    for title, signatures in pages.items():
        rows = [
            row
            for signature in signatures
            for row in (signature.name, *(f"{signature.name}({a})" for a in signature.arguments))
        ]
        found[title] = tuple(row for row in rows if row not in seen)
        seen.update(rows)
    return found


DOCUMENTED = read(SIGNATURES.read_text(encoding="utf-8"))
"""What the pages document, by page."""

PAGES = names(DOCUMENTED)
"""Names by page, each on the first page that has it."""

ALL = frozenset(name for rows in PAGES.values() for name in rows)
"""Every name."""
