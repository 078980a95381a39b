"""What becomes of docstrings on the site: examples are shown as code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)


class Examples(griffe.Extension):
    """Gives the section of a docstring's example the name by which griffe shows it as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section; griffe calls it for each object.

        Args:
            obj: The object.
        """
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub("Examples:", obj.docstring.value)
