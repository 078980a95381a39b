"""Marks on exported nodes: those of what is traced inside, and of nothing else."""

from __future__ import annotations

import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import annotate, preserve_node_meta

from samba.support.marks import mark_of, marked


def traced(*, within: bool) -> GraphModule:
    """Operations before, inside, between and behind two marks."""

    def compute(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        with marked("one", 1):
            x = x.cos()
        x = x.tan()
        with marked("two"), marked("three", 3):
            x = x.exp()
        return x.log()

    if not within:
        return make_fx(compute)(torch.ones(2))
    with annotate({"torch": True}), preserve_node_meta():
        return make_fx(compute)(torch.ones(2))


def test_a_mark_is_on_what_is_traced_inside() -> None:
    """Where torch has annotations of its own at the same time, too."""
    for within in (False, True):
        found = {
            node.name: tuple(mark_of(node, key) for key in ("one", "two", "three"))
            for node in traced(within=within).graph.nodes
            if node.op == "call_function"
        }
        assert found == {
            "sin": (None, None, None),
            "cos": (1, None, None),
            "tan": (None, None, None),
            "exp": (None, True, 3),
            "log": (None, None, None),
        }
