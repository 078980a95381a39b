"""What is no product: elementwise operations, reductions, norms, losses.

One operation of an element counts as one, an exponential as an addition: enough to tell a section
that computes from one that moves. Products are counted elsewhere, and exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from emulator.op_facts.fused_products import is_projected
from emulator.op_facts.moves import FREE
from emulator.op_facts.node_arguments import NamedArgs
from emulator.op_facts.product_flops import PRODUCT_OPS
from emulator.op_facts.table import op_facts
from pef_schema.program import Gradient, Graph, Node

__all__ = ["UNCOUNTED", "has_other", "other_flops", "other_gradient_flops"]

_UNCOUNTED_NAMES = """
aten._histogramdd_bin_edges.default aten._histogramdd_from_bin_cts.default
aten._histogramdd_from_bin_tensors.default aten._linalg_det.default
aten._linalg_eigh.default aten._linalg_slogdet.default aten._linalg_solve_ex.default
aten._linalg_svd.default aten._lu_with_info.default aten._standard_gamma.default
aten.argsort.default aten.argsort.stable aten.binomial.default aten.bucketize.Scalar
aten.bucketize.Tensor aten.cholesky.default aten.cholesky_inverse.default
aten.cholesky_solve.default aten.det.default aten.fractional_max_pool2d.default
aten.fractional_max_pool3d.default aten.geqrf.default aten.histc.default
aten.histogram.bin_ct aten.histogram.bins_tensor aten.inverse.default
aten.isin.Scalar_Tensor aten.isin.Tensor_Scalar aten.isin.Tensor_Tensor
aten.kthvalue.default aten.linalg_cholesky.default aten.linalg_cholesky_ex.default
aten.linalg_det.default aten.linalg_eigh.default aten.linalg_householder_product.default
aten.linalg_inv.default aten.linalg_inv_ex.default aten.linalg_lu.default
aten.linalg_lu_factor.default aten.linalg_lu_factor_ex.default aten.linalg_lu_solve.default
aten.linalg_matrix_exp.default aten.linalg_matrix_power.default
aten.linalg_pinv.atol_rtol_float aten.linalg_pinv.atol_rtol_tensor aten.linalg_pinv.default
aten.linalg_pinv.rcond_tensor aten.linalg_qr.default aten.linalg_slogdet.default
aten.linalg_solve.default aten.linalg_solve_ex.default aten.linalg_solve_triangular.default
aten.logdet.default aten.lu_solve.default aten.matrix_exp.default aten.matrix_power.default
aten.median.default aten.median.dim aten.mode.default aten.msort.default
aten.multinomial.default aten.nanmedian.default aten.nanmedian.dim aten.orgqr.default
aten.ormqr.default aten.pinverse.default aten.poisson.default aten.randperm.default
aten.searchsorted.Scalar aten.searchsorted.Tensor aten.segment_reduce.default
aten.slogdet.default aten.sort.default aten.sort.stable aten.topk.default
aten.triangular_solve.default samba.ctc_loss.default
"""
UNCOUNTED = frozenset(_UNCOUNTED_NAMES.split())
"""Ops whose cost goes by their data or by an algorithm that nobody has counted: sorts, factors of
matrices, searches, draws of unknown length. They are told by name."""

_Rule = Callable[[NamedArgs], int]


def _input(position: int, factor: int) -> _Rule:
    return lambda at: factor * sum(map(math.prod, at.shapes(position)))


def _results(factor: int) -> _Rule:
    return lambda at: factor * max(map(math.prod, at.results), default=0)


def _window(at: NamedArgs) -> int:
    """A pool: each element of the result takes its window."""
    kernel = at.given(1)
    sizes = kernel if isinstance(kernel, tuple) else (kernel,)
    whole = [n for n in sizes if isinstance(n, int)]
    dims = int(_POOL_DIMS[at.op])
    taps = math.prod(whole) if len(whole) > 1 else whole[0] ** dims if whole else 1
    return taps * max(map(math.prod, at.results), default=0)


def _bag(at: NamedArgs) -> int:
    """Each index adds a row."""
    table = at.shape(0)
    return math.prod(at.shape(1)) * (table[-1] if table else 1)


def _renorm(at: NamedArgs) -> int:
    """Square, sum and factor of each element of the rows that are named."""
    return 3 * _bag(at)


def _distance(at: NamedArgs) -> int:
    """Difference, power and sum for each pair and feature."""
    features = at.shape(0)[-1] if at.shape(0) else 1
    return 3 * features * math.prod(at.result)


def _bias(position: int) -> _Rule:
    """One addition for each element of the result where there is a bias."""
    return lambda at: math.prod(at.result) if at.given(position) is not None else 0


def _attention(at: NamedArgs) -> int:
    """Scale, mask, and the five of a softmax, for each pair."""
    q, k = at.shape(0), at.shape(1)
    return 7 * math.prod(q[:-1]) * k[-2]


def _gates(factor: int) -> _Rule:
    """Of a recurrent layer: so many for each element of a state in each step."""

    def of(at: NamedArgs) -> int:
        layers = at.given(4)
        result = at.results[0] if at.results else ()
        elements = math.prod(result)
        if is_projected(at):
            # The result is the narrow h; what is computed for each element is of the width of c.
            h, c = at.shapes(1)
            elements = elements // max(h[-1], 1) * c[-1]
        return factor * elements * (layers if isinstance(layers, int) else 1)

    return of


def _fourier(at: NamedArgs) -> int:
    """5 n log2 n for each transform of n complex numbers, half of it where one side is real."""
    sizes = at.shape(0) if at.op != "aten._fft_c2r.default" else at.result
    dims = at.given(1)
    axes = [d for d in dims if isinstance(d, int)] if isinstance(dims, tuple) else []
    points = math.prod(sizes[d] for d in axes)
    whole = round(5 * math.prod(sizes) * math.log2(points)) if points > 1 else 0
    return whole if at.op == "aten._fft_c2c.default" else whole // 2


_POOL_DIMS = {
    f"aten.{kind}_pool{n}d{more}.default": n
    for kind, more in (("avg", ""), ("max", ""), ("max", "_with_indices"))
    for n in (1, 2, 3)
}

_GROUPS: tuple[tuple[_Rule, str], ...] = (
    # Reductions and scans: one for each element that is read.
    (
        _input(0, 1),
        """
        aten._adaptive_avg_pool2d.default aten._adaptive_avg_pool3d.default
        aten._is_all_true.default aten._is_any_true.default aten.adaptive_avg_pool1d.default
        aten.adaptive_avg_pool2d.default aten.adaptive_avg_pool3d.default
        aten.adaptive_max_pool1d.default aten.adaptive_max_pool2d.default
        aten.adaptive_max_pool3d.default aten.all.default aten.all.dim aten.all.dims
        aten.amax.default aten.amin.default aten.any.default aten.any.dim aten.any.dims
        aten.argmax.default aten.argmin.default aten.col2im.default
        aten.count_nonzero.default aten.count_nonzero.dim_IntList aten.cummax.default
        aten.cummin.default aten.cumprod.default aten.cumsum.default aten.diff.default
        aten.max.default aten.max.dim aten.mean.default aten.mean.dim aten.min.default
        aten.min.dim aten.prod.default aten.prod.dim_int aten.sum.default
        aten.sum.dim_IntList aten.sum_to_size.default aten.trace.default
        """,
    ),
    (
        _input(0, 2),
        """
        aten.aminmax.default aten.frobenius_norm.dim aten.linalg_vector_norm.default
        aten.nanmean.default aten.nansum.default aten.norm.Scalar aten.norm.ScalarOpt_dim
        aten.norm.ScalarOpt_dim_dtype aten.norm.ScalarOpt_dtype aten.linalg_vecdot.default
        """,
    ),
    (
        _input(0, 3),
        """
        aten._logcumsumexp.default aten.logcumsumexp.default aten.logsumexp.default
        aten.special_logsumexp.default aten.std.correction aten.std.default aten.std.dim
        aten.std_mean.correction aten.std_mean.default aten.std_mean.dim aten.var.correction
        aten.var.default aten.var.dim aten.var_mean.correction aten.var_mean.default
        aten.var_mean.dim aten.dist.default aten.renorm.default aten._weight_norm.default
        aten._weight_norm_interface.default
        """,
    ),
    # Softmax: the largest, a difference, an exponential, a sum, a quotient.
    (
        _input(0, 5),
        """
        aten._log_softmax.default aten._safe_softmax.default aten._softmax.default
        aten.log_softmax.int aten.softmax.int
        """,
    ),
    # Norms: mean and variance, difference, product with the deviation, weight and bias.
    (
        _input(0, 8),
        """
        aten._native_batch_norm_legit.no_stats aten._native_batch_norm_legit_functional.default
        aten._native_batch_norm_legit_no_training.default aten.group_norm.default
        aten.instance_norm.default aten.layer_norm.default aten.native_group_norm.default
        aten.native_layer_norm.default
        """,
    ),
    (_input(0, 4), "aten._fused_rms_norm.default aten.rms_norm.default"),
    # Losses: cross entropy is a softmax and a choice.
    (_input(0, 5), "aten.cross_entropy_loss.default"),
    (
        _input(1, 2),
        """
        aten.nll_loss.default aten.nll_loss2d.default aten.nll_loss2d_forward.default
        aten.nll_loss_forward.default aten.nll_loss_nd.default
        """,
    ),
    (
        _input(0, 3),
        """
        aten.hinge_embedding_loss.default aten.huber_loss.default aten.kl_div.default
        aten.l1_loss.default aten.margin_ranking_loss.default aten.mse_loss.default
        aten.multilabel_margin_loss.default aten.poisson_nll_loss.default
        aten.smooth_l1_loss.default aten.soft_margin_loss.default
        """,
    ),
    (
        _input(0, 6),
        """
        aten.binary_cross_entropy.default aten.binary_cross_entropy_with_logits.default
        aten.cosine_embedding_loss.default aten.cosine_similarity.default
        aten.pairwise_distance.default aten.triplet_margin_loss.default
        """,
    ),
    (_window, " ".join(_POOL_DIMS)),
    (
        _bag,
        "aten._embedding_bag.default aten.embedding_bag.default aten.embedding_bag.padding_idx",
    ),
    (_renorm, "samba.embedding_renorm.default"),
    (_distance, "aten.cdist.default aten.pdist.default"),
    # Places that several sources meet in.
    (
        _input(3, 1),
        """
        aten.index_add.default aten.index_reduce.default aten.scatter.reduce
        aten.scatter_add.default aten.scatter_reduce.two
        """,
    ),
    (_input(2, 1), "aten.scatter.value_reduce aten._unsafe_masked_index_put_accumulate.default"),
    # Interpolation: so many neighbours, each with a weight.
    (_results(4), "aten.upsample_linear1d.default aten.upsample_linear1d.vec"),
    (
        _results(8),
        """
        aten._upsample_bilinear2d_aa.default aten._upsample_bilinear2d_aa.vec
        aten.grid_sampler.default aten.grid_sampler_2d.default aten.upsample_bilinear2d.default
        aten.upsample_bilinear2d.vec
        """,
    ),
    (
        _results(16),
        """
        aten.grid_sampler_3d.default aten.upsample_trilinear3d.default
        aten.upsample_trilinear3d.vec
        """,
    ),
    (
        _results(32),
        """
        aten._upsample_bicubic2d_aa.default aten._upsample_bicubic2d_aa.vec
        aten.upsample_bicubic2d.default aten.upsample_bicubic2d.vec
        """,
    ),
    # Products of pairs of elements that nothing is summed over.
    (_results(1), "aten.outer.default aten.ger.default aten.kron.default aten.rrelu.default"),
    (_results(3), "aten.addr.default aten.linalg_cross.default"),
    # Polynomials by their recurrence, to an order that is data: one step.
    (
        _results(4),
        " ".join(n for n in op_facts() if "_polynomial_" in n),
    ),
    # What comes to a product: a bias, a blend, gates.
    (_bias(2), "aten.linear.default aten.convolution.default"),
    (
        _bias(2),
        """
        aten.conv1d.default aten.conv2d.default aten.conv3d.default aten.conv1d.padding
        aten.conv2d.padding aten.conv3d.padding aten.conv_transpose1d.default
        aten.conv_transpose2d.input aten.conv_transpose3d.input
        """,
    ),
    (_fourier, "aten._fft_c2c.default aten._fft_c2r.default aten._fft_r2c.default"),
    (_bias(3), "aten.bilinear.default"),
    (
        _results(1),
        "aten.addmm.default aten.addmv.default aten.baddbmm.default aten.addbmm.default",
    ),
    (_attention, "aten.scaled_dot_product_attention.default"),
    (_gates(30), "aten.lstm.input"),
    (_gates(20), "aten.gru.input"),
    (_gates(5), "aten.rnn_tanh.input aten.rnn_relu.input"),
    (_results(30), "aten.lstm_cell.default"),
    (_results(20), "aten.gru_cell.default"),
    (_results(5), "aten.rnn_tanh_cell.default aten.rnn_relu_cell.default"),
)

_RULES: dict[str, _Rule] = {name: rule for rule, names in _GROUPS for name in names.split()}
_elementwise = _results(1)

_SUMMED_BACK_NAMES = """
aten._unsafe_index.Tensor aten.broadcast_to.default aten.embedding.default
aten.expand.default aten.expand_as.default aten.expand_copy.default aten.gather.default
aten.index.Tensor aten.index_select.default aten.repeat.default
aten.repeat_interleave.Tensor aten.repeat_interleave.self_Tensor
aten.repeat_interleave.self_int aten.take.default aten.take_along_dim.default
aten.tile.default
"""
_SUMMED_BACK = frozenset(_SUMMED_BACK_NAMES.split())
"""Moves that give an element several times: its gradients are added up."""


def has_other(op: str) -> bool:
    """Whether somebody has said what an op takes besides products.

    Args:
        op: Its full name.

    Example:
        >>> has_other("aten.tanh.default"), has_other("aten.sort.default")
        (True, False)
    """
    if op in UNCOUNTED:
        return False
    facts = op_facts().get(op)
    return op in FREE or op in _RULES or op in PRODUCT_OPS or (facts is not None and facts.cheap)


def other_flops(graph: Graph | Gradient, node: Node) -> int:
    """Operations of a node that are no products.

    An op that stands in no table here is elementwise: one for each element of its result.

    Args:
        graph: Its graph, or the custom gradient that it is of.
        node: The node; :func:`has_other` holds of its op.
    """
    if node.op in FREE:
        return 0
    rule = _RULES.get(node.op, None if node.op in PRODUCT_OPS else _elementwise)
    return 0 if rule is None else rule(NamedArgs(graph, node))


def other_gradient_flops(graph: Graph | Gradient, node: Node) -> int:
    """Operations of a node's gradient that are no products: about those of the node per argument.

    Args:
        graph, node: As :func:`other_flops` takes them.
    """
    at = NamedArgs(graph, node)
    wanted = len(at.wanted())
    if node.op in _SUMMED_BACK:
        return wanted * math.prod(at.result)
    return wanted * other_flops(graph, node)
