"""The graph as boxes within boxes that fold by module, in the order in which it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from samba.inspection.estimate import amount_text
from samba.reporting.markup import element, link_to_line, text
from samba.support.layout import some

__all__ = ["graph_boxes"]

_DEPTH = 24
"""Boxes within each other; a file may name any number of modules."""
_OPEN = 2
"""Levels that are unfolded at first."""
COLORS = 8
"""Colours of sections, which begin again after the last."""


@dataclass(slots=True)
class _Module:
    """A module with what runs in it, in order: modules and nodes.

    Args:
        name: Its own name.
        path: With those of the modules around it.
        parts: Modules and nodes.
        flops: Of all nodes inside.
        nodes: How many they are.
    """

    name: str
    path: str
    parts: list[_Module | dict[str, Any]] = field(default_factory=list["_Module | dict[str, Any]"])
    flops: float = 0.0
    nodes: int = 0


def graph_boxes(graph: Mapping[str, Any], sections: Sequence[Mapping[str, Any]]) -> str:
    """A graph as HTML.

    A module that runs in two stretches has two boxes, since boxes stand in the order of the run.

    Args:
        graph: A graph as ``inspect --json`` describes it.
        sections: The sections, as it describes them.

    Returns:
        HTML in which ``<details>`` fold, by mouse and keyboard, without a script.
    """
    names = {section["id"]: section["name"] for section in sections}
    root = _Module("", "")
    for node in graph["nodes"]:
        found = root
        parts = node["module"].split("__", _DEPTH - 1) if node["module"] else []
        for depth, part in enumerate(parts):
            path = "__".join(parts[: depth + 1])
            last = found.parts[-1] if found.parts else None
            if not isinstance(last, _Module) or last.path != path:
                last = _Module(part, path)
                found.parts.append(last)
            found = last
        found.parts.append(node)
    _count(root)
    whole = root.flops or 1.0
    inside = "".join(_part(part, names, whole, 0) for part in root.parts)
    return element("div", {"class": "graph"}, inside)


def _count(module: _Module) -> None:
    for part in module.parts:
        if isinstance(part, _Module):
            _count(part)
            module.flops += part.flops
            module.nodes += part.nodes
        else:
            module.flops += part["flops"] or 0
            module.nodes += 1


def _part(
    part: _Module | dict[str, Any], names: Mapping[int, str], whole: float, depth: int
) -> str:
    if not isinstance(part, _Module):
        return _node(part, names)
    share = part.flops / whole
    head = (
        element("b", None, text(part.name))
        + element(
            "span",
            {"class": "share", "style": f"--share:{share:.4f}", "aria-hidden": "true"},
            "",
        )
        + element(
            "span",
            {"class": "facts"},
            text(f"{some(part.nodes, 'node')}, {amount_text(part.flops, 'FLOP')}, {share:.1%}"),
        )
    )
    inside = "".join(_part(inner, names, whole, depth + 1) for inner in part.parts)
    return element(
        "details",
        {"open": depth < _OPEN, "title": part.path},
        element("summary", None, head),
        element("div", {"class": "inside"}, inside),
    )


def _node(node: Mapping[str, Any], names: Mapping[int, str]) -> str:
    forms = " ".join(
        f"{out['dtype']}[{', '.join(map(str, out['shape']))}]" for out in node["outputs"] if out
    )
    runs = [i for i in node["sections"] if i in names]
    where = "".join(
        element(
            "a",
            {"class": f"section c{i % COLORS}", "href": f"#section-{i}"},
            text(names[i]),
        )
        for i in runs
    )
    return element(
        "div",
        {"class": "node", "id": f"node-{node['id']}"},
        element("code", None, text(node["operation"])),
        element("span", {"class": "form"}, text(forms)),
        where,
        element("span", {"class": "facts"}, text(amount_text(node["flops"] or 0, "FLOP"))),
        link_to_line(node["line"]),
    )
