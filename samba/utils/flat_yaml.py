"""The part of YAML that holds options: names, scalar values and lists of scalars.

An own reader, because options need no more than this and YAML would be a dependency.
"""

from __future__ import annotations

import re
from typing import Any

from pef_schema.errors import quoted
from samba.errors import SambaError

_ENTRY = re.compile(r"(?P<name>[A-Za-z_][\w.-]*)\s*:(?:\s+(?P<value>.*))?$")
_NUMBER = re.compile(r"[-+]?(\d[\d_]*)$")
_FLOAT = re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+)([eE][-+]?\d+)?$")
_WORDS: dict[str, Any] = {
    "": None,
    "~": None,
    "null": None,
    "true": True,
    "yes": True,
    "on": True,
    "false": False,
    "no": False,
    "off": False,
    ".inf": float("inf"),
    "-.inf": float("-inf"),
    ".nan": float("nan"),
}


class YamlError(SambaError, ValueError):
    """A line is outside the part of YAML that is read.

    Args:
        where: The file.
        line: Number of the line, from 1.
        text: The line.
        wanted: What could have stood there.
    """

    def __init__(self, *, where: str, line: int, text: str, wanted: str) -> None:
        self.where, self.line, self.text = where, line, text
        super().__init__(f"{where}:{line}: found {text.strip()!r}, expected {wanted}.")


class YamlUnreadable(SambaError, OSError):
    """The system does not let a YAML file be read.

    Args:
        path: The file.
        found: What the system said.
    """

    def __init__(self, *, path: str, found: str) -> None:
        self.path, self.found = path, found
        super().__init__(
            f"{quoted(path, 1024)}: found {found!r:.200}, expected a YAML file of 'name: value' "
            "lines. Check the path and its permissions."
        )


class YamlMissing(YamlUnreadable, FileNotFoundError):
    """There is no such YAML file."""


def parse_flat_yaml(text: str, where: str = "YAML") -> dict[str, Any]:
    """Reads ``name: value`` lines.

    Args:
        text: The YAML text. Values are numbers, booleans, null, strings with or without quotes,
            and lists of these, in brackets or one ``- value`` a line.
        where: Its file, for messages.

    Returns:
        Values by name, in the order of the text.

    Raises:
        YamlError: A line is something else, or a name comes twice.

    Example:
        >>> parse_flat_yaml("batch-size: 8\\nlr: 1e-3\\nops: [gemm, softmax]")
        {'batch-size': 8, 'lr': 0.001, 'ops': ['gemm', 'softmax']}
    """
    result: dict[str, Any] = {}
    open_list: list[Any] | None = None
    open_name = ""
    for number, line in enumerate(text.splitlines(), start=1):
        content = _without_comment(line).rstrip()
        if not content or content in ("---", "..."):
            continue
        item = re.match(r"\s*-(?:\s+|$)(.*)", content)
        if item is not None and open_name:
            if open_list is None:
                open_list = result[open_name] = []
            open_list.append(_scalar(item[1], where, number))
            continue
        entry = _ENTRY.match(content)
        if entry is None or entry["name"] in result:
            wanted = "'name: value'" if entry is None else "every name once"
            raise YamlError(where=where, line=number, text=line, wanted=wanted)
        value = _value(entry["value"] or "", where, number)
        result[entry["name"]] = value
        open_list, open_name = None, entry["name"] if value is None else ""
    return result


def _value(text: str, where: str, line: int) -> Any:
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        inner = text[1:-1].strip()
        return [_scalar(part, where, line) for part in inner.split(",")] if inner else []
    return _scalar(text, where, line)


def _scalar(text: str, where: str, line: int) -> Any:
    text = text.strip()
    if text[:1] in ("'", '"'):
        if len(text) < 2 or text[-1] != text[0] or text[0] in text[1:-1] or "\\" in text:
            wanted = "a closing quote, and neither quotes nor backslashes inside"
            raise YamlError(where=where, line=line, text=text, wanted=wanted)
        return text[1:-1]
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _NUMBER.match(text):
        try:
            return int(text)
        except ValueError:  # too many digits, or a lone underscore
            wanted = "a whole number of fewer digits"
            raise YamlError(where=where, line=line, text=text[:80], wanted=wanted) from None
    if _FLOAT.match(text):
        return float(text)
    if text[:1] in tuple("[]{}&*!|>%@`?") or text.startswith("- ") or ": " in text:
        raise YamlError(
            where=where,
            line=line,
            text=text,
            wanted="a number, a word, a quoted string, or a list of these",
        )
    return text


def _without_comment(line: str) -> str:
    """Cuts a comment: a '#' at the start or after a space, outside of quotes."""
    quote = ""
    for index, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"" and (index == 0 or line[index - 1] in " [,"):
            quote = character
        elif character == "#" and (index == 0 or line[index - 1].isspace()):
            return line[:index]
    return line
