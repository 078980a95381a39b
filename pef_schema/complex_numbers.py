"""Where a program holds complex numbers."""

from __future__ import annotations

from collections.abc import Sequence

from pef_schema.program import Arg, DType, Gradient, Graph, Node, Program, Ref, Value


def has_complex(program: Program) -> bool:
    """Whether a tensor or an argument of a program is complex.

    Args:
        program: Any program.
    """
    parts: list[Graph | Gradient] = [*program.graphs]
    parts += [gradient for graph in program.graphs for gradient in graph.gradients]
    return (
        any(region.dtype.is_complex for region in program.regions)
        or any(value.dtype.is_complex for part in parts for value in part.values)
        or any(is_complex_node(node, ()) for part in parts for node in part.nodes)
    )


def is_complex_node(node: Node, values: Sequence[Value]) -> bool:
    """Whether a node takes or gives complex numbers, as tensors, numbers or by a dtype.

    Args:
        node: The node.
        values: Those of its graph; without them tensors do not count.

    Example:
        >>> is_complex_node(Node(op="aten.mul.Scalar", args=(Ref(0), 1j), outputs=(1,)), ())
        True
    """
    if values and any(v >= 0 and values[v].dtype.is_complex for v in node.outputs):
        return True
    args = (*node.args, *[arg for _, arg in node.kwargs])
    return any(_is_complex(arg, values) for arg in args)


def _is_complex(arg: Arg, values: Sequence[Value]) -> bool:
    if isinstance(arg, tuple):
        return any(_is_complex(item, values) for item in arg)
    if isinstance(arg, Ref):
        return bool(values) and values[arg.value].dtype.is_complex
    return isinstance(arg, complex) or (isinstance(arg, DType) and arg.is_complex)
