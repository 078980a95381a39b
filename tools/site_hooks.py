"""What becomes of the documentation on the site: of links into the code, and of docstrings.

The pages are read in the repository as well, where they link to code and tests. The site has no
copy of these, so such a link becomes the path that it leads to; one that leads nowhere is an error,
as links between pages are. In docstrings, examples are shown as code.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((\.\./[^)\s]*)\)")
_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)

_log = logging.getLogger("mkdocs.hooks.site")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace links out of the documentation; mkdocs calls it for each page.

    Args:
        markdown: The page's text.
        page: The page.

    Returns:
        The text for the site.
    """
    source = Path(page.file.abs_src_path)

    def replaced(match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        path, _, _ = target.partition("#")
        place = (source.parent / path).resolve()
        if place.is_relative_to(ROOT / "docs"):
            return match[0]
        if not place.exists():
            _log.warning("%s links to %s, which is not there", page.file.src_path, target)
        inner = place.relative_to(ROOT) if place.is_relative_to(ROOT) else place
        shown = f"`{inner}`"
        return shown if text.strip("`") in (str(inner), inner.name) else f"{text} ({shown})"

    return _LINK.sub(replaced, markdown)


class Examples(griffe.Extension):
    """Gives the section of a docstring's example the name by which griffe shows it as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section; griffe calls it for each object.

        Args:
            obj: The object.
        """
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub("Examples:", obj.docstring.value)
