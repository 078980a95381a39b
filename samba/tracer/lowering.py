"""The third stage of a trace: the exported graph in operations that the device has.

What has no lowering is decomposed with torch's own table until nothing changes; torch's checks go;
type promotion is made visible: every tensor argument of a promoting operation gets an explicit cast
to the type that torch computes in, so that no lowering has to promote. What no decomposition can
help is refused, all of it at once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, cast

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from emulator.handler_errors import raise_error_of_handler
from emulator.op_facts.table import facts_of, op_facts
from samba.tracer.data_dependent.masked_rows import bound_selections
from samba.tracer.data_dependent.turns import keep_slopes_finite
from samba.tracer.errors import DEPENDS_ON_DATA, UnsupportedOp, UnsupportedOps
from samba.tracer.inputs import foreign_reason
from samba.tracer.kernel_refusals import refuse_of_nothing
from samba.tracer.marker_ops import CHECK, COTANGENT, MARKER
from samba.tracer.nodes import argument, aten_calls, call_like
from samba.tracer.preparing import quiet
from samba.tracer.random_draws import refuse_seeded
from samba.tracer.torch_internals import (
    arguments_of,
    decompositions,
    is_made_of_others,
    is_operation,
    promoted_dtype,
    tree_leaves,
)
from samba.tracer.traced import TO_DTYPE
from samba.tracer.user_code import node_line

__all__ = ["lower"]

_MAX_DECOMPOSITION_ROUNDS = 8
_CHECKS = (
    *("aten._assert_tensor_metadata", "aten._assert_scalar", "aten._assert_async"),
    "aten.sym_constrain_range",
)
"""How the names of operations begin that do nothing but raise."""


def lower(program: ExportedProgram, root: str) -> ExportedProgram:
    """The graph in operations that the device has, with the types that they take.

    Args:
        program: A functional program, as the stage before gives it; it may be changed.
        root: Name of the model, for errors.

    Raises:
        UnsupportedOps: If operations have no lowering; names all of them.
        ShapeMismatch: If torch refuses an operation for tensors without elements.
        SeededNumbers: If an operation draws behind a seed.
    """
    program = _decompose(program, root)
    with quiet():
        _drop_checks(program.graph)
        keep_slopes_finite(program.graph, program.graph_signature.user_inputs)
        _keep_statistics(program.graph)
        _insert_casts(program.graph)
    refuse_seeded(program.graph.nodes)
    return program


def _decompose(program: ExportedProgram, root: str) -> ExportedProgram:
    """Decompose what has no lowering with torch's own table until nothing changes."""
    known = op_facts()
    _drop_checks(program.graph)
    bound_selections(program.graph_module)
    table = _decompositions()
    refuse_of_nothing(program.graph, root)
    refused, _ = _refused_ops(program.graph)
    for _ in range(_MAX_DECOMPOSITION_ROUNDS):
        missing = _missing(program, known)
        rules: dict[Any, Any] = {
            n.target: table[n.target]
            if str(n.target) not in known
            else _only_complex(n.target, table[n.target])
            for n in missing
            if n.target in table and _may_be_decomposed(n)
        }
        if not rules:
            break
        try:
            with quiet():
                program = program.run_decompositions(rules)
                _drop_checks(program.graph)
        except Exception as error:
            raise_error_of_handler(error)
            if not refused:
                raise
            break  # torch fails on what is refused anyway
    missing = _missing(program, known)
    if refused:
        touched = _refused_ops(program.graph)[1]
        missing = [node for node in missing if node not in touched and _gives_tensors(node)]
    if missing or refused:
        plain = [
            (n, _NOT_COMPLEX if str(n.target) in known or not _may_be_decomposed(n) else "")
            for n in missing
        ]
        raise UnsupportedOps(model=root, ops=_listed([*refused.items(), *plain]))
    return program


def _gives_tensors(node: Node) -> bool:
    """False for what only serves the sizes of a result whose shape depends on data."""
    return isinstance(node.meta.get("val"), (torch.Tensor, tuple, list))


@cache
def _decompositions() -> Mapping[Any, Any]:
    """Torch's own decompositions; building the table takes longer than tracing a small model."""
    return MappingProxyType(decompositions())


def _drop_checks(graph: Graph) -> None:
    """Drop torch's checks: of shapes and dtypes, which have passed in a static graph, and of data.

    A running program cannot raise: where a matrix is singular, its results are not finite.
    """
    for node in reversed(graph.nodes):
        if str(node.target).startswith(_CHECKS) and not node.users:
            graph.erase_node(node)
        elif node.target is torch.ops.higher_order.with_effects and (
            node.args[1] is torch.ops.aten._linalg_check_errors.default
        ):
            for token in list(node.users):
                token.replace_all_uses_with(node.args[0])
                graph.erase_node(token)
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _keep_statistics(graph: Graph) -> None:
    """Running statistics that a batch norm does not train are the ones that went in."""
    target = torch.ops.aten._native_batch_norm_legit_functional.default
    for node in list(graph.nodes):
        if node.target is target and not node.args[5]:
            for user in list(node.users):
                if user.target is operator.getitem and user.args[1] in (3, 4):
                    user.replace_all_uses_with(node.args[user.args[1]])
                    graph.erase_node(user)


def _missing(program: ExportedProgram, known: Mapping[str, Any]) -> list[Node]:
    return [
        node
        for node in program.graph.nodes
        if node.op == "call_function"
        and is_operation(node.target)
        and str(node.target) not in (MARKER, COTANGENT, CHECK)
        and (str(node.target) not in known or _lacks_complex(node))
    ]


# -- what no decomposition can help --------------------------------------------------------

_IN_FIXED_POINT = (
    *("aten.upsample_linear1d", "aten.upsample_bilinear2d", "aten.upsample_bicubic2d"),
    *("aten.upsample_trilinear3d", "aten._upsample_bilinear2d_aa", "aten._upsample_bicubic2d_aa"),
)
"""How the names of operations begin that torch computes of uint8 with whole weights."""

_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_TAKES_A_NUMBER = (
    "takes a number out of a tensor: compute with the tensor itself, x * t in place of "
    "x * t.item(), x.index_select(0, t) in place of x[t.item()] or t.tolist(), torch.stack in "
    "place of torch.tensor of numbers, a mask in place of a length"
)


def _refused_ops(graph: Graph) -> tuple[dict[Node, str], set[Node]]:
    """Nodes that no lowering can help, each with the reason.

    Only the nodes where the trouble starts: what merely computes on their results is left out.

    Args:
        graph: An exported functional graph.

    Returns:
        Node to reason, in the order of the graph; and all nodes that take or give what the
        device cannot hold.
    """
    refused: dict[Node, str] = {}
    foreign: set[Node] = set()
    touched: set[Node] = set()
    for node in graph.nodes:
        if node.op == "output":
            continue
        reason = _reason(node)
        if reason:
            foreign.add(node)
        if any(source in foreign for source in node.all_input_nodes):
            touched.add(node)
        elif reason:
            refused[node] = reason
    return refused, touched | foreign


def _reason(node: Node) -> str:
    values = node.meta.get("val")
    for value in values if isinstance(values, (tuple, list)) else (values,):
        if isinstance(value, _NUMBERS):
            return _TAKES_A_NUMBER
        if not isinstance(value, torch.Tensor):
            continue
        reason = foreign_reason(value)
        if reason:
            return reason
        if value.dtype not in TO_DTYPE:
            kind = "complex numbers" if value.is_complex() else str(value.dtype)
            return f"{kind} are not supported"
        if any(isinstance(size, torch.SymInt) for size in value.shape):
            return DEPENDS_ON_DATA
        if value.dtype is torch.uint8 and _resamples(node, value):
            return "torch interpolates uint8 in fixed point: interpolate x.float(), and round that"
    return ""


def _resamples(node: Node, result: torch.Tensor) -> bool:
    """Whether a node interpolates between elements; one that keeps the size copies them."""
    if not str(node.target).startswith(_IN_FIXED_POINT):
        return False
    return node.all_input_nodes[0].meta["val"].shape != result.shape


def _listed(nodes: Iterable[tuple[Node, str]]) -> list[UnsupportedOp]:
    """Nodes as entries of an error: one per operation and reason, most frequent first."""
    counts: dict[tuple[str, str], int] = {}
    lines: dict[tuple[str, str], dict[str, None]] = {}
    for node, reason in nodes:
        name = f"input {node.name}" if node.op == "placeholder" else str(node.target)
        key = (name, reason)
        counts[key] = counts.get(key, 0) + 1
        line = node_line(node)
        if line:
            lines.setdefault(key, {})[line] = None
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [
        UnsupportedOp(name=key[0], count=count, lines=tuple(lines.get(key, ())), reason=key[1])
        for key, count in ranked
    ]


# -- complex numbers -----------------------------------------------------------------------

_NOT_COMPLEX = "it does not compute with complex numbers"

_MADE_OF_OTHERS = frozenset(
    f"aten.{name}.default"
    for name in (
        *("_chunk_cat", "channel_shuffle", "diagonal_backward", "logaddexp", "renorm"),
        *("resize_as", "select_backward", "slice_backward", "unfold_backward"),
    )
)
"""What torch has for complex numbers, and the device as a sum of other operations.

Torch's decompositions say nothing of that: that of ``softplus`` would compute with complex numbers,
which its kernel refuses.
"""


def _lacks_complex(node: Node) -> bool:
    """Whether a node takes or gives complex numbers though its operation has none on the device."""
    return not facts_of(str(node.target)).complex and _is_complex(node)


def _may_be_decomposed(node: Node) -> bool:
    """Whether torch computes what a decomposition of a node computes."""
    name, target = str(node.target), node.target
    if not name.startswith("aten.") or name in _MADE_OF_OTHERS or not _is_complex(node):
        return True
    return is_operation(target) and is_made_of_others(target)


def _only_complex(target: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition that leaves the real calls of an operation alone."""
    if is_operation(target) and is_made_of_others(target):
        return rule  # torch's exporter asks for no other way then

    def complex_alone(*args: Any, **kwargs: Any) -> Any:
        return rule(*args, **kwargs) if _has_complex((args, kwargs)) else NotImplemented

    return complex_alone


def _is_complex(node: Node) -> bool:
    values = [source.meta.get("val") for source in node.all_input_nodes]
    return _has_complex((values, node.meta.get("val"), node.args, node.kwargs))


def _has_complex(tree: Any) -> bool:
    return any(
        (isinstance(leaf, torch.Tensor) and leaf.is_complex())
        or isinstance(leaf, complex)
        or (isinstance(leaf, torch.dtype) and leaf.is_complex)
        for leaf in tree_leaves(tree)
    )


# -- type promotion ------------------------------------------------------------------------

_PROMOTES_SCALARS = frozenset(
    (
        *("add", "sub", "rsub", "mul", "div", "true_divide", "floor_divide", "remainder", "fmod"),
        *("pow", "float_power", "eq", "ne", "lt", "le", "gt", "ge", "clamp", "clamp_min"),
        *("clamp_max", "maximum", "minimum", "fmax", "fmin", "atan2", "xlogy", "where", "lerp"),
        *("addcmul", "addcdiv", "logaddexp", "logaddexp2", "hypot", "copysign", "bitwise_and"),
        *("bitwise_or", "bitwise_xor", "special_xlog1py"),
    )
)
"""Operations of which a number among the arguments may change the type of the result."""

_CATENATES = frozenset(("cat", "stack", "hstack", "vstack", "dstack", "concat", "column_stack"))
_KEEPS_TYPES = frozenset(("masked_fill", "copy", "fill", "_to_copy", "native_dropout", "dropout"))
_OPERANDS = {"where": slice(1, None), "add": slice(2), "sub": slice(2), "rsub": slice(2)}
"""Which arguments take part in promotion, where that is not all of them."""


def _insert_casts(graph: Graph) -> None:
    """Insert ``aten._to_copy`` before every argument that torch would promote."""
    for node, packet in list(aten_calls(graph)):
        common = _promotion(node, packet)
        default = _default_dtype(node)
        if default is not None and not node.all_input_nodes:
            node.kwargs = {**node.kwargs, "dtype": default}
        elif default is not None and packet not in _KEEPS_TYPES:
            common = default
        if common is None:
            continue
        keep = node.args[:1] if packet == "where" else ()

        def cast(arg: Node, common=common, keep=keep, node=node) -> Node:
            value = arg.meta.get("val")
            if not isinstance(value, torch.Tensor) or value.dtype == common or arg in keep:
                return arg
            with node.graph.inserting_before(node):
                return call_like(node, torch.ops.aten._to_copy.default, arg, dtype=common)

        node.args = torch.fx.map_arg(node.args, cast)
        node.kwargs = torch.fx.map_arg(node.kwargs, cast)


def _default_dtype(node: Node) -> torch.dtype | None:
    """The floating type of a result for which torch took its default, where that is not float32.

    So it does where an operation is given no type, and no floating numbers.
    """
    value = node.meta.get("val")
    default = torch.get_default_dtype()
    if default is torch.float32 or not isinstance(value, torch.Tensor) or value.dtype != default:
        return None
    sources = [source.meta.get("val") for source in node.all_input_nodes]
    if any(
        isinstance(v, torch.Tensor) and (v.is_floating_point() or v.is_complex()) for v in sources
    ):
        return None
    places = {a.name: place for place, a in enumerate(arguments_of(node.target))}
    given = argument(node, places["dtype"]) if "dtype" in places else None
    tagged = torch.Tag.pointwise in getattr(node.target, "tags", ())
    return default if given is None and ("dtype" in places if not sources else tagged) else None


def _promotion(node: Node, packet: str) -> torch.dtype | None:
    """The dtype that all tensor arguments of a node are cast to; None to leave them alone."""
    if packet in _CATENATES:
        value = node.meta["val"]
        return value.dtype if isinstance(value, torch.Tensor) else None
    promotes_scalars = packet in _PROMOTES_SCALARS
    tags = getattr(node.target, "tags", ())
    if packet in _KEEPS_TYPES or not (promotes_scalars or torch.Tag.pointwise in tags):
        return None
    operands: list[Any] = []
    arguments = cast("tuple[Any, ...]", node.args)
    for arg in arguments[_OPERANDS.get(packet, slice(None))]:
        if isinstance(arg, Node):
            operands.append(arg.meta["val"])
        elif promotes_scalars and isinstance(arg, (bool, int, float, complex)):
            operands.append(arg)
    tensors = [o for o in operands if isinstance(o, torch.Tensor)]
    if not tensors or (len({t.dtype for t in tensors}) == 1 and len(operands) == len(tensors)):
        return None
    return promoted_dtype(operands)
