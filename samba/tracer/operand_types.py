"""Types that eager torch refuses and its exporter does not: the exporter runs no kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from samba.support.deviations import Deviations
from samba.tracer.errors import DtypeMismatch
from samba.tracer.names import node_line
from samba.tracer.torch_internals import is_operation, packet_of

__all__ = ["float64_text", "promotion_text", "refuse_types"]

_WHOLE = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_NO_FLOAT = _WHOLE | {torch.bool}
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_BOOL = frozenset({torch.bool})
_LONG = frozenset({torch.int64})
_INDICES = frozenset({torch.int32, torch.int64})

_REFUSED: Mapping[str, frozenset[torch.dtype]] = {
    **dict.fromkeys(
        (
            *("binary_cross_entropy", "celu", "gelu", "glu", "grid_sampler", "grid_sampler_2d"),
            *("grid_sampler_3d", "hardsigmoid", "hardswish", "lerp", "logcumsumexp"),
            *("max_pool1d", "max_pool1d_with_indices", "mish", "rrelu", "silu", "softplus"),
            *("std", "std_mean", "var", "var_mean"),
        ),
        _NO_FLOAT,
    ),
    **dict.fromkeys(("_softmax", "softmax", "_log_softmax", "log_softmax"), _NO_FLOAT),
    "log_sigmoid": _WHOLE,
    **dict.fromkeys(
        ("__and__", "__or__", "__xor__", "bitwise_and", "bitwise_or", "bitwise_xor"), _FLOATS
    ),
    "l1_loss": _BOOL,
    **dict.fromkeys(
        (
            *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
            *("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d"),
            *("upsample_trilinear3d", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d"),
        ),
        _NO_FLOAT - {torch.uint8},
    ),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"), _NO_FLOAT - {torch.int64}),
    **dict.fromkeys(
        (
            *("abs", "addmm", "addmv", "argmax", "argmin", "baddbmm", "bmm", "ceil", "conv1d"),
            *("conv2d", "conv3d", "floor", "linear", "matmul", "median", "mm", "mv", "relu"),
            *("reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "round", "threshold"),
            *("replication_pad1d", "replication_pad2d", "replication_pad3d"),
            *("topk", "trunc"),
        ),
        _BOOL,
    ),
}
"""Types that no tensor may have which an operation computes with; where ``dtype`` is given, it
counts."""

_HALVES: Mapping[torch.dtype, str] = {torch.float16: "Half", torch.bfloat16: "BFloat16"}
"""Floating types of 16 bits, by the names that torch's kernels give them."""

_NOT_OF_HALVES = frozenset(
    {
        *("cdist", "cholesky", "cholesky_inverse", "cholesky_solve", "det", "geqrf"),
        *("linalg_cholesky", "linalg_cholesky_ex", "linalg_cond", "linalg_det", "linalg_eig"),
        *("linalg_eigh", "linalg_eigvals", "linalg_eigvalsh", "linalg_householder_product"),
        *("linalg_ldl_factor", "linalg_ldl_factor_ex", "linalg_ldl_solve", "linalg_lu"),
        *("linalg_lu_factor", "linalg_lu_factor_ex", "linalg_lu_solve", "linalg_qr"),
        *("linalg_solve", "linalg_solve_ex", "linalg_solve_triangular", "linalg_svd"),
        *("linalg_svdvals", "linalg_tensorsolve", "lu_solve", "orgqr", "ormqr", "pdist", "qr"),
        *("svd", "triangular_solve"),
    }
)
"""Operations that torch's kernels on the CPU do not compute in 16 bits."""

_PADS = frozenset({"pad", "_pad_enum"})

_FEW_ROWS = 25
"""Up to so many rows of each tensor ``cdist`` needs its own kernel; of more it makes a product."""

_ONE_TYPE = frozenset(
    {
        "binary_cross_entropy",
        "cross",
        "grid_sampler",
        "grid_sampler_2d",
        "grid_sampler_3d",
        "heaviside",
        "linalg_cross",
    }
)
"""Operations whose tensors must all be of one type."""

_NORMS = frozenset(
    {
        *("_native_batch_norm_legit", "_native_batch_norm_legit_functional", "batch_norm"),
        *("_native_batch_norm_legit_no_training", "group_norm", "instance_norm", "layer_norm"),
        *("native_batch_norm", "native_group_norm", "native_layer_norm"),
    }
)
_PRODUCTS = _NORMS | frozenset(
    {
        *("addbmm", "addmm", "addmv", "baddbmm", "bilinear", "bmm", "conv1d"),
        *("conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("convolution", "dot", "gru_cell", "linear", "lstm_cell", "matmul", "mm", "mv"),
        *("rnn_relu_cell", "rnn_tanh_cell", "vdot"),
    }
)
"""Operations whose tensors are all whole, or all floating of one type; floating ones are promoted,
which is told."""

_TAKES: Mapping[str, tuple[int, frozenset[torch.dtype]]] = {
    "cross_entropy_loss": (1, _FLOATS | _WHOLE),
    "nll_loss": (1, _WHOLE),
    "nll_loss_nd": (1, _WHOLE),
    "one_hot": (0, _LONG),
    "index_add": (2, _INDICES),
    "index_copy": (2, _LONG),
    "index_fill": (2, _LONG),
    "index_select": (2, _INDICES),
    "put": (1, _LONG),
    "repeat_interleave": (1, _INDICES),
    "multi_margin_loss": (1, _LONG),
    "multilabel_margin_loss": (1, _LONG),
    "masked_scatter": (1, _BOOL),
    "index": (1, _INDICES | {torch.uint8, torch.bool}),
    "index_put": (1, _INDICES | {torch.uint8, torch.bool}),
}
"""Which argument holds indices, labels or a mask, and the types that it may have."""


def refuse_types(graph: torch.fx.Graph, told: Deviations) -> None:
    """Raise where eager torch would refuse the types of an operation's tensors.

    Args:
        graph: An exported functional graph, before it is decomposed.
        told: What has been said about the model.

    Raises:
        DtypeMismatch: With the first such operation, its types and its line.
    """
    for node in graph.nodes:
        if node.op != "call_function" or not is_operation(node.target):
            continue
        if getattr(node.target, "namespace", "") != "aten":
            continue
        packet = packet_of(node.target)
        _check(node, packet)
        if packet in _PRODUCTS:
            _check_product(node, packet, told)


def _check_product(node: torch.fx.Node, packet: str, told: Deviations) -> None:
    found = set(_dtypes(node.args))
    floats = {dtype for dtype in found if dtype.is_floating_point}
    if floats and found - floats and not any(dtype.is_complex for dtype in found):
        raise _refused(node, packet, list(found), "it takes one type")
    if len(floats) > 1 and not (packet in _NORMS and _taken_by_norm(node)):
        where = node_line(node) or "forward()"
        name = packet.strip("_").removeprefix("native_").split("_legit")[0]
        if torch.float64 in floats:
            told.tell("promoted-float64", float64_text(where, name))
        elif floats <= _FLOATS:
            told.tell("promoted-types", promotion_text(where, name, floats))


def _taken_by_norm(node: torch.fx.Node) -> bool:
    """Whether a norm of half precision has parameters of float32, which torch takes."""
    halves = set(_dtypes(node.args[0])) <= {torch.bfloat16, torch.float16}
    return halves and set(_dtypes(node.args[1:])) == {torch.float32}


def promotion_text(where: str, function: str, floats: Iterable[torch.dtype]) -> str:
    """What is told where a function promotes floating types that torch refuses together.

    Args:
        where: The user's line.
        function: Name of the function.
        floats: The types.
    """
    kinds = " and ".join(sorted(map(str, floats)))
    return (
        f"{where}: {function} takes {kinds} together, which torch refuses; it is computed in the "
        "wider type, here and wherever it happens again. Convert one of them, such as "
        "x.to(weight.dtype), to do without this"
    )


def float64_text(where: str, function: str) -> str:
    """:func:`promotion_text` where one of the types is float64.

    Args:
        where: The user's line.
        function: Name of the function.
    """
    return (
        f"{where}: {function} takes float64 together with a narrower type, which torch refuses; it "
        "is computed in float64, and slowly. Arrays of numpy are float64: call .float() on the "
        "input, or on the model if its weights are float64"
    )


def _check(node: torch.fx.Node, packet: str) -> None:
    place, taken = _TAKES.get(packet, (-1, frozenset[torch.dtype]()))
    if place >= 0 and place < len(node.args):
        for dtype in _dtypes(node.args[place]):
            if dtype not in taken:
                raise _refused(node, packet, [dtype], f"wanted {_names(taken)}")
    refused = _REFUSED.get(packet)
    if refused is not None and node.kwargs.get("dtype") is None and not _casts(node):
        found = [dtype for dtype in _dtypes(node.args) if dtype in refused]
        if found:
            wanted = "it takes numbers" if refused is _BOOL else "it takes floating numbers"
            wanted = "it takes whole numbers" if refused is _FLOATS else wanted
            raise _refused(node, packet, found, wanted)
    if packet in _NOT_OF_HALVES and not _has_product(node, packet):
        found = [dtype for dtype in _dtypes(node.args) if dtype in _HALVES]
        if found and _result_type(node) in _HALVES:  # within torch.autocast it may be float32
            raise _refused(node, packet, found, f"not implemented for '{_HALVES[found[0]]}'")
    if packet in _PADS and "reflect" in node.args and torch.bool in _dtypes(node.args[:1]):
        raise _refused(node, "reflection_pad", [torch.bool], "not implemented for 'Bool'")
    if packet in _ONE_TYPE:
        found = list(dict.fromkeys(_dtypes(node.args)))
        if len(found) > 1:
            raise _refused(node, packet, found, "it takes one type")


def _has_product(node: torch.fx.Node, packet: str) -> bool:
    """Whether ``cdist`` is computed with a product of matrices, or of nothing, in any type."""
    if packet != "cdist":
        return False
    given: dict[str, Any] = {"p": 2.0, "compute_mode": None, **node.kwargs}
    given.update(zip(("p", "compute_mode"), node.args[2:], strict=False))
    power, mode = given["p"], given["compute_mode"]
    sizes = [x.meta["val"].shape for x in node.all_input_nodes]
    if any(type(n) is not int for shape in sizes for n in shape):
        return True  # it hangs on data
    if any(0 in shape for shape in sizes):
        return True
    many = mode in (None, 0) and any(shape[-2] > _FEW_ROWS for shape in sizes)
    return bool(power == 2 and (many or mode == 1))


def _result_type(node: torch.fx.Node) -> torch.dtype | None:
    value = node.meta.get("val")
    first = value[0] if isinstance(value, (tuple, list)) else value
    return first.dtype if isinstance(first, torch.Tensor) else None


def _casts(node: torch.fx.Node) -> bool:
    """Whether a type is among the arguments, as in ``softmax(x, 0, torch.float32)``."""
    return any(isinstance(arg, torch.dtype) for arg in node.args)


def _dtypes(arg: object) -> Iterator[torch.dtype]:
    if isinstance(arg, torch.fx.Node):
        value = arg.meta.get("val")
        if isinstance(value, torch.Tensor):
            yield value.dtype
    elif isinstance(arg, (list, tuple)):
        for item in arg:
            yield from _dtypes(item)


def _names(dtypes: frozenset[torch.dtype]) -> str:
    return " or ".join(sorted(map(str, dtypes)))


def _refused(
    node: torch.fx.Node, packet: str, found: list[torch.dtype], wanted: str
) -> DtypeMismatch:
    kinds = " and ".join(sorted({str(dtype) for dtype in found}))
    return DtypeMismatch(
        where=node_line(node) or "forward()",
        reason=f"{packet.strip('_')} of {kinds}, which torch refuses as well: {wanted}",
        hint="Convert it before: .float(), .long(), or .to(other.dtype).",
    )
