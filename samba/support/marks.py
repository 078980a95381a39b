"""Marks on the nodes of an exported graph, which torch calls annotations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.fx import Node
from torch.fx.traceback import annotate, get_current_meta, preserve_node_meta


@contextmanager
def marked(key: str, value: object = True) -> Iterator[None]:
    """While active, the nodes that are traced have a mark.

    Args:
        key: Its key.
        value: Its value.
    """
    meta = get_current_meta()
    if "custom" in meta:
        # `annotate` changes this dict, which nodes that were traced before have, too.
        meta["custom"] = dict(meta["custom"])
    # In this order: what is preserved would bring the mark back behind `annotate`.
    with annotate({key: value}), preserve_node_meta():
        yield


def mark(node: Node, key: str) -> None:
    """Mark a node.

    Args:
        node: An exported node.
        key: The mark's key.
    """
    node.meta["custom"] = {**(node.meta.get("custom") or {}), key: True}


def mark_of(node: Node, key: str) -> Any:
    """The value of a mark of a node; None if it has none of that key.

    Args:
        node: An exported node.
        key: The mark's key.
    """
    return (node.meta.get("custom") or {}).get(key)
