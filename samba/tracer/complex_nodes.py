"""Operations of an exported graph that meet complex numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from emulator.op_facts.table import facts_of
from samba.tracer.torch_internals import is_made_of_others, is_operation, tree_leaves

NOT_COMPLEX = "it does not compute with complex numbers"

_MADE_OF_OTHERS_NAMES = """
aten._chunk_cat.default aten.channel_shuffle.default aten.diagonal_backward.default
aten.logaddexp.default aten.renorm.default aten.resize_as.default aten.select_backward.default
aten.slice_backward.default aten.unfold_backward.default
"""
_MADE_OF_OTHERS = frozenset(_MADE_OF_OTHERS_NAMES.split())
"""What torch has for complex numbers, and the device as a sum of other operations.

Torch's decompositions say nothing of that: that of ``softplus`` would compute with complex numbers,
which its kernel refuses.
"""


def lacks_complex(node: torch.fx.Node) -> bool:
    """Whether a node takes or gives complex numbers though its operation has none on the device.

    Args:
        node: A node that calls an operation.
    """
    return not facts_of(str(node.target)).complex and _is_complex(node)


def may_be_decomposed(node: torch.fx.Node) -> bool:
    """Whether torch computes what a decomposition of a node computes.

    Args:
        node: A node that calls an operation.
    """
    name, target = str(node.target), node.target
    if not name.startswith("aten.") or name in _MADE_OF_OTHERS or not _is_complex(node):
        return True
    return is_operation(target) and is_made_of_others(target)


def only_complex(target: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition that leaves the real calls of an operation alone.

    Args:
        target: The operation.
        rule: How it is made of others.
    """
    if is_operation(target) and is_made_of_others(target):
        return rule  # torch's exporter asks for no other way then

    def complex_alone(*args: Any, **kwargs: Any) -> Any:
        return rule(*args, **kwargs) if _has_complex((args, kwargs)) else NotImplemented

    return complex_alone


def _is_complex(node: torch.fx.Node) -> bool:
    values = [source.meta.get("val") for source in node.all_input_nodes]
    return _has_complex((values, node.meta.get("val"), node.args, node.kwargs))


def _has_complex(tree: Any) -> bool:
    return any(
        (isinstance(leaf, torch.Tensor) and leaf.is_complex())
        or isinstance(leaf, complex)
        or (isinstance(leaf, torch.dtype) and leaf.is_complex)
        for leaf in tree_leaves(tree)
    )
