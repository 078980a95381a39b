"""Operations of an exported graph that meet complex numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from emulator.op_facts.complex_ops import COMPLEX_OPS
from samba.tracer.torch_internals import is_composite, is_operation, tree_leaves

NOT_COMPLEX = "it does not compute with complex numbers"


def lacks_complex(node: torch.fx.Node) -> bool:
    """Whether a node takes or gives complex numbers though its operation has none on the device.

    Args:
        node: A node that calls an operation.
    """
    if str(node.target) in COMPLEX_OPS:
        return False
    values = [source.meta.get("val") for source in node.all_input_nodes]
    return _has_complex((values, node.meta.get("val"), node.args, node.kwargs))


def only_complex(target: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition that leaves the real calls of an operation alone.

    Args:
        target: The operation.
        rule: How it is made of others.
    """
    if is_operation(target) and is_composite(target):
        return rule  # torch has nothing else to do with what is only made of others

    def complex_alone(*args: Any, **kwargs: Any) -> Any:
        return rule(*args, **kwargs) if _has_complex((args, kwargs)) else NotImplemented

    return complex_alone


def _has_complex(tree: Any) -> bool:
    return any(
        (isinstance(leaf, torch.Tensor) and leaf.is_complex())
        or isinstance(leaf, complex)
        or (isinstance(leaf, torch.dtype) and leaf.is_complex)
        for leaf in tree_leaves(tree)
    )
