"""In which module's call a node of an exported graph was traced, and what it is called for it."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping

import torch

from samba.tracer.torch_internals import packet_of


def last_nodes(nodes: Iterable[torch.fx.Node]) -> dict[str, torch.fx.Node]:
    """The last node of each call of a module; it carries the module's own name."""
    last: dict[str, torch.fx.Node] = {}
    for node in nodes:
        if node.op == "call_function" and node.target is not operator.getitem:
            calls = _calls(node)
            if calls:
                last[calls[-1][0]] = node
    return last


def label(node: torch.fx.Node, last: Mapping[str, torch.fx.Node]) -> tuple[str, str]:
    """Module path and op label: a torch.nn module's last op is called like the module's class.

    Args:
        node: A node that calls an operation.
        last: From :func:`last_nodes`.
    """
    packet = packet_of(node.target)
    calls = _calls(node)
    if not calls:
        return "", packet.strip("_")
    key, path, cls = calls[-1]
    if cls.startswith("torch.nn.modules.") and last.get(key) is node:
        return path, cls.rsplit(".", 1)[-1].lower()
    return path, packet.strip("_")


def _calls(node: torch.fx.Node) -> list[tuple[str, str, str]]:
    """``(call key, module path, class)`` from the model down to the innermost module."""
    stack = node.meta.get("nn_module_stack") or {}
    result = []
    for key, (path, cls) in stack.items():
        name = cls if isinstance(cls, str) else f"{cls.__module__}.{cls.__qualname__}"
        result.append((key, str(path).split("@")[0], name))
    return result
