"""HTML from texts that nobody trusts: all that comes from a file goes through :func:`text`."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

from pef_schema.printable import one_line

__all__ = ["element", "link_to_line", "table", "text"]

Attributes = Mapping[str, str | int | float | bool | None]


def text(value: object) -> str:
    """A value as text in HTML: one line, what would steer anything escaped.

    Example:
        >>> text("<b>\\x1b[2J & 'x'")
        '&lt;b&gt;\\\\x1b[2J &amp; &#x27;x&#x27;'
    """
    return html.escape(one_line(str(value)), quote=True)


def element(tag: str, attributes: Attributes | None = None, *inside: str) -> str:
    """An element; what is inside is HTML, attributes are plain values.

    Args:
        tag: Its name.
        attributes: By name; False and None are left out, True has no value.
        inside: HTML.

    Example:
        >>> element("a", {"href": '"', "hidden": True, "id": None}, text("<"))
        '<a href="&quot;" hidden>&lt;</a>'
    """
    shown = ""
    for name, value in (attributes or {}).items():
        if value is None or value is False:
            continue
        shown += f" {name}" if value is True else f' {name}="{text(value)}"'
    return f"<{tag}{shown}>{''.join(inside)}</{tag}>"


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = (), label: str
) -> str:
    """A table; where the page is narrow each row is a paragraph, whose cells have their heads.

    Args:
        head: Names of the columns, plain text.
        rows: Cells, HTML.
        numbers: Columns that hold numbers.
        label: What it is, for who does not see it.
    """
    top = "".join(
        element("th", {"scope": "col", "class": "number" if i in numbers else None}, text(name))
        for i, name in enumerate(head)
    )
    body = "".join(
        "<tr>"
        + "".join(
            element("td", {"class": "number" if i in numbers else None, "data-h": head[i]}, cell)
            for i, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    inner = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return element(
        "div", {"class": "wide", "tabindex": 0, "role": "region", "aria-label": label}, inner
    )


def link_to_line(line: str) -> str:
    """A source line as a link to its file, which it names without folders; plain text where it
    names no place.

    Args:
        line: As ``net.py:12``, a path from where the page is opened or from the root.

    Example:
        >>> link_to_line("net.py:12")
        '<a class="line" href="net.py#L12" title="net.py:12">net.py:12</a>'
        >>> link_to_line("javascript:alert(1)")
        '<span class="line">javascript:alert(1)</span>'
    """
    path, _, number = line.rpartition(":")
    if not path or not number.isdecimal() or ":" in path:
        return element("span", {"class": "line"}, text(line)) if line else ""
    where = {"class": "line", "href": f"{path}#L{number}", "title": line}
    return element("a", where, text(line.replace("\\", "/").rpartition("/")[2]))
