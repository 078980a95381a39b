"""What eager torch refuses of an operation's arguments and its exporter lets through.

The exporter runs no kernels, and knows no more of a mask than that it sets some entries. One walk
over the exported graph asks of each operation: does torch take the types of its tensors, and the
sizes of its masks? What depends on data, or what torch computes otherwise, is told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Graph, Node

from samba.support.deviations import Deviations
from samba.tracer.errors import DtypeMismatch, ShapeMismatch
from samba.tracer.nodes import argument, aten_calls, value_of
from samba.tracer.torch_internals import arguments_of
from samba.tracer.user_code import node_line

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


def refuse_arguments(graph: Graph, deviations: Deviations, *, inference: bool) -> None:
    """Raise where eager torch would refuse the arguments of an operation.

    Args:
        graph: An exported functional graph, before it is decomposed.
        deviations: What has been said about the model.
        inference: Whether no gradients are wanted.

    Raises:
        DtypeMismatch: For the types of tensors, or for bytes as a mask where torch takes bools
            alone; with the first such operation, its types and its line.
        ShapeMismatch: For the sizes of a mask, with torch's words and the user's line.
    """
    for node, packet in aten_calls(graph):
        _check(node, packet)
        if packet in _PRODUCTS:
            _check_product(node, packet, deviations)
        look = _LOOKS.get(packet)
        if look is not None and not (inference and packet in _BAGS):
            look(node, deviations)


# -- types -----------------------------------------------------------------------------


def _check_product(node: Node, packet: str, deviations: Deviations) -> None:
    dtypes = set(_dtypes(node.args))
    floats = {dtype for dtype in dtypes if dtype.is_floating_point}
    if floats and dtypes - floats and not any(dtype.is_complex for dtype in dtypes):
        raise _refused(node, packet, list(dtypes), "its tensors must have the same dtype")
    if len(floats) > 1 and not (packet in _NORMS and _taken_by_norm(node)):
        where = node_line(node, "forward()")
        name = packet.strip("_").removeprefix("native_").split("_legit")[0]
        if torch.float64 in floats:
            deviations.tell("promoted-float64", float64_text(where, name))
        elif floats <= _FLOATS:
            deviations.tell("promoted-types", promotion_text(where, name, floats))


def _taken_by_norm(node: Node) -> bool:
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
        "wider type, here and wherever else this occurs. Convert one of them, such as "
        "x.to(weight.dtype), to avoid this"
    )


def float64_text(where: str, function: str) -> str:
    """:func:`promotion_text` where one of the types is float64.

    Args:
        where: The user's line.
        function: Name of the function.
    """
    return (
        f"{where}: {function} takes float64 together with a narrower type, which torch refuses; it "
        "is computed in float64, which is slow. NumPy arrays are float64: call .float() on the "
        "input, or on the model if its weights are float64"
    )


def _check(node: Node, packet: str) -> None:
    dtypes = list(_dtypes(node.args))
    place, types = _TAKES.get(packet, (len(node.args), frozenset[torch.dtype]()))
    for dtype in _dtypes(node.args[place : place + 1]):
        if dtype not in types:
            raise _refused(node, packet, [dtype], f"expected {_names(types)}")
    refused = _REFUSED.get(packet, frozenset[torch.dtype]())
    wrong = [dtype for dtype in dtypes if dtype in refused]
    if wrong and node.kwargs.get("dtype") is None and not _casts(node):
        texts = {_BOOL: "it takes numbers", _FLOATS: "it takes whole numbers"}
        raise _refused(node, packet, wrong, texts.get(refused, "it takes floating numbers"))
    if packet in _NOT_OF_HALVES and not _has_product(node, packet):
        halves = [dtype for dtype in dtypes if dtype in _HALVES]
        if halves and _result_type(node) in _HALVES:  # within torch.autocast it may be float32
            raise _refused(node, packet, halves, f"not implemented for '{_HALVES[halves[0]]}'")
    if packet in _PADS and "reflect" in node.args and torch.bool in _dtypes(node.args[:1]):
        raise _refused(node, "reflection_pad", [torch.bool], "not implemented for 'Bool'")
    if packet in _ONE_TYPE and len(set(dtypes)) > 1:
        raise _refused(
            node, packet, list(dict.fromkeys(dtypes)), "its tensors must have the same dtype"
        )


def _has_product(node: Node, packet: str) -> bool:
    """Whether ``cdist`` is computed with a product of matrices, or of nothing, in any type."""
    if packet != "cdist":
        return False
    power, mode = argument(node, 2, 2.0), argument(node, 3)
    sizes = [x.meta["val"].shape for x in node.all_input_nodes]
    if any(type(n) is not int for shape in sizes for n in shape):
        return True  # it hangs on data
    if any(0 in shape for shape in sizes):
        return True
    many = mode in (None, 0) and any(shape[-2] > _FEW_ROWS for shape in sizes)
    return bool(power == 2 and (many or mode == 1))


def _result_type(node: Node) -> torch.dtype | None:
    value = node.meta.get("val")
    first = value[0] if isinstance(value, (tuple, list)) else value
    return first.dtype if isinstance(first, torch.Tensor) else None


def _casts(node: Node) -> bool:
    """Whether a type is among the arguments, as in ``softmax(x, 0, torch.float32)``."""
    return any(isinstance(arg, torch.dtype) for arg in node.args)


def _dtypes(arg: object) -> Iterator[torch.dtype]:
    if isinstance(arg, Node):
        value = arg.meta.get("val")
        if isinstance(value, torch.Tensor):
            yield value.dtype
    elif isinstance(arg, (list, tuple)):
        for item in arg:
            yield from _dtypes(item)


def _names(dtypes: frozenset[torch.dtype]) -> str:
    return " or ".join(sorted(map(str, dtypes)))


def _refused(node: Node, packet: str, dtypes: list[torch.dtype], text: str) -> DtypeMismatch:
    kinds = " and ".join(sorted({str(dtype) for dtype in dtypes}))
    return DtypeMismatch(
        where=node_line(node, "forward()"),
        reason=f"{packet.strip('_')} of {kinds}, which torch refuses as well: {text}",
        hint="Convert it first: .float(), .long(), or .to(other.dtype).",
    )


# -- masks as indices ------------------------------------------------------------------

_MASKS = frozenset({torch.bool, torch.uint8})


def _look_at_masks(node: Node, deviations: Deviations) -> None:
    """Refuse masks as indices whose sizes do not fit, and tell where that depends on data."""
    base = value_of(argument(node, 0))
    indices = [value_of(index) for index in argument(node, 1)]
    if not _known(base, *indices):
        return  # selections of a mask have as many rows as it sets
    masks = [i for i in indices if isinstance(i, torch.Tensor) and i.dtype in _MASKS]
    if masks:
        _refuse_sizes(node, base, indices)
    if masks and len(arguments_of(node.target)) > 2:
        _refuse_values(node, base, indices, masks, deviations)


def _refuse_sizes(node: Node, base: torch.Tensor, indices: list[Any]) -> None:
    """Each mask has the sizes of the axes that it stands for."""
    axis = 0
    for place, index in enumerate(indices):
        if index is None or index.dtype not in _MASKS:
            axis += 1
            continue
        if axis + index.dim() > base.dim():
            raise _mismatch(node, f"too many indices for tensor of dimension {base.dim()}")
        for own, (have, want) in enumerate(zip(index.shape, base.shape[axis:], strict=False)):
            if have != want:
                raise _mismatch(
                    node,
                    f"The shape of the mask {list(index.shape)} at index {own} does not match the "
                    f"shape of the indexed tensor {list(base.shape)} at index {axis + own}"
                    + (f" (index {place})" if len(indices) > 1 else ""),
                )
        axis += index.dim()


def _refuse_values(
    node: Node,
    base: torch.Tensor,
    indices: list[Any],
    masks: list[torch.Tensor],
    deviations: Deviations,
) -> None:
    """Values fit the entries that a mask sets."""
    values, accumulates = value_of(argument(node, 2)), argument(node, 3, False)
    if (
        values is None
        or not _known(values)  # the rows of a selection by this very mask, as a rule
        or len(masks) > 1
        or any(i is not None and i is not masks[0] for i in indices)
    ):
        return  # it has no form on the device
    (mask,) = masks
    lead = next(place for place, index in enumerate(indices) if index is mask)
    if values.numel() == 1 and not accumulates and mask.dtype is torch.uint8:
        raise DtypeMismatch(
            where=node_line(node, "forward()"),
            reason="masked_fill_ only supports boolean masks, but got mask with dtype "
            "unsigned char",
            hint="Torch raises that, too, when it runs: make the mask with .bool().",
        )
    rest = base.shape[lead + mask.dim() :]
    axis = values.dim() - len(rest) - 1  # of the values, one for each entry that is set
    count = values.shape[axis] if axis >= 0 else 1
    if count == 1:
        return
    if count > math.prod(mask.shape):
        raise _mismatch(
            node,
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to "
            f"indexing result: the mask {list(mask.shape)} sets fewer than {count} entries",
        )
    deviations.tell(
        "unchecked-index",
        f"{node_line(node) or 'forward()'}: a mask is given {count} values. If it sets another "
        "number of entries, torch raises but the device gives wrong results",
    )


def _tell_source(node: Node, deviations: Deviations) -> None:
    """Warn that no run checks whether ``masked_scatter`` has values for all entries of a mask."""
    source = value_of(argument(node, 2))
    if (
        source is not None
        and _known(source, node.meta["val"])
        and source.numel() < node.meta["val"].numel()
    ):
        deviations.tell(
            "unchecked-index",
            f"{node_line(node) or 'forward()'}: a mask is given {source.numel()} values. If it "
            "sets more entries, torch raises but the device gives wrong results",
        )


def _known(*values: torch.Tensor | None) -> bool:
    """Whether all sizes of tensors are numbers, and none hangs on data."""
    return all(type(n) is int for v in values if v is not None for n in v.shape)


def _mismatch(node: Node, reason: str) -> ShapeMismatch:
    return ShapeMismatch(
        where=node_line(node, "forward()"),
        reason=reason,
        hint="Torch raises that, too, when it runs: give the mask the sizes of the axes that it "
        "indexes.",
    )


# -- bags ------------------------------------------------------------------------------


def _tell_frequencies(node: Node, deviations: Deviations) -> None:
    """Say once that gradients of a bag's rows are divided by other counts than torch's."""
    if argument(node, 3, False):
        deviations.tell(
            "bag-frequencies",
            f"{node_line(node, 'forward()')}: embedding_bag(scale_grad_by_freq=True) divides "
            "each row's gradient by how often that row is read. Torch divides it by the count of "
            "another row: for the k-th row that occurs, its kernel looks up the count of the "
            "k-th index",
        )


_BAGS = frozenset({"embedding_bag", "_embedding_bag"})
_LOOKS: Mapping[str, Callable[[Node, Deviations], None]] = MappingProxyType(
    {
        **dict.fromkeys(("index", "_unsafe_index"), _look_at_masks),
        **dict.fromkeys(("index_put", "_unsafe_index_put", "_index_put_impl"), _look_at_masks),
        "masked_scatter": _tell_source,
        **dict.fromkeys(_BAGS, _tell_frequencies),
    }
)
"""Operations at whose arguments there is more to look at than their types."""
