"""How to call every reduction and normalisation, for the tests that poison their inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from emulator.ops.registry import OpSpec
from samba.tracer.grad_mode import RENORM, renorm_operation

FAMILIES = frozenset(
    {
        "adaptive",
        "batch_norm",
        "distance",
        "loss",
        "moments",
        "norm",
        "order",
        "pool",
        "reduce",
        "regression",
    }
)
"""Modules of ``emulator.ops`` that hold nothing but reductions and normalisations."""

WORDS = re.compile(
    r"softmax|norm|reduce|logsumexp|[._][af]?(?:max|min)|attention|embedding_bag|scatter_add|index_add"
    r"|sum_|mean|median"
)
"""Names that are reductions, normalisations or choices of an extreme, in any other module."""

NO_FLOATS = frozenset({"aten._is_any_true.default", "aten._is_all_true.default"})
"""They take truth values only, which are never NaN."""


def needs_case(spec: OpSpec) -> bool:
    """Whether an op must have a case here."""
    if spec.random or spec.name in NO_FLOATS:
        return spec.name == "aten.scaled_dot_product_attention.default"
    family = spec.lower.__module__.rsplit(".", 1)[-1]
    return family in FAMILIES or bool(WORDS.search(spec.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A call.

    Args:
        args, kwargs: torch arguments; floating tensors are cast to the type under test.
        poison: Positions of the arguments that get poison; None for all floating tensors.
        half: False where torch has no bfloat16 kernel on the CPU, or another test compares it.
        values: What is put in; some functions are not defined for all of them.
        more: Torch's kernel loses some NaN, depending on order; the device may keep them.
        results: How many results count; None for all.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    poison: tuple[int, ...] | None = None
    half: bool = True
    values: tuple[float, ...] = (float("nan"), float("inf"), float("-inf"))
    more: bool = False
    results: int | None = None


CASES: dict[str, list[Case]] = {}
NAN = (float("nan"),)


def _data(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _add(names: str, *args: Any, **more: Any) -> None:
    options = {k: more.pop(k) for k in ("poison", "half", "values", "more", "results") if k in more}
    for name in names.split():
        CASES.setdefault(f"aten.{name}", []).append(Case(args=args, kwargs=more, **options))


X, Y, Z = _data(3, 4), _data(3, 4, seed=1), _data(3, 4, seed=2)
P = X.sigmoid()
ROW = _data(4, seed=3)
SIGNS = torch.tensor([[1, -1, 1, -1]] * 3)
CLASSES = torch.tensor([1, -100, 3])
IMAGE = _data(1, 2, 4, 4)
INDEX = torch.tensor([[0, 1, 2, 0], [2, 2, 0, 1], [1, 0, 0, 2]])

# -- reduce: everything, then along an axis -------------------------------
_add("sum.default mean.default nansum.default nanmean.default prod.default max.default", X)
_add("min.default count_nonzero.default aminmax.default any.default all.default", X)
_add("argmax.default argmin.default", X)
_add("argmax.default argmin.default nansum.default nanmean.default", X, 1)
_add("trace.default", X[:, :3])
_add("aminmax.default", X, dim=0)
_add("sum.dim_IntList mean.dim count_nonzero.dim_IntList amax.default amin.default", X, [1])
_add("sum.dim_IntList mean.dim amax.default amin.default any.dims all.dims", X, [0, 1])
_add("prod.dim_int max.dim min.dim any.dim all.dim", X, 1)
_add("max.dim min.dim", X, 0, True)
_add("sum_to_size.default", X, [1, 4])

# -- order -------------------------------------------------------------------
_add("sort.default argsort.default", X, 1, True)
_add("sort.default argsort.default median.dim nanmedian.dim", X, 1)
# Torch sorts with std::sort, for which NaN has no place.
_add("mode.default", X, 1, values=(float("inf"), float("-inf")))
_add("sort.stable argsort.stable", X, stable=True, dim=0, descending=False)
_add("msort.default median.default nanmedian.default", X)
_add("topk.default", X, 2, 1)
_add("topk.default", X, 2, 0, False)
_add("kthvalue.default", X, 2, 1)
SORTED = torch.tensor([-1.0, 0.0, 0.5, 2.0])
_add("searchsorted.Tensor", SORTED, X, poison=(1,))
_add("bucketize.Tensor", X, SORTED, poison=(0,))
_add("searchsorted.Scalar", SORTED, float("nan"), poison=())
_add("bucketize.Scalar", float("nan"), SORTED, poison=())
_add("histc.default", X, 4, -2, 2)

# -- scan and moments ---------------------------------------------------------
_add("cumsum.default cumprod.default logcumsumexp.default _logcumsumexp.default", X, 1)
_add("cummax.default cummin.default", X, 1)
_add("diff.default", X)
_add("var.correction std.correction", X, [1], correction=1)
_add("var.default std.default", X)
_add("var.dim std.dim logsumexp.default special_logsumexp.default", X, [1])
# Torch's mean in one pass is infinite or NaN, depending on where the infinity lies.
_add("var_mean.correction std_mean.correction", X, [1], correction=1, values=NAN)
_add("var_mean.default std_mean.default", X, values=NAN)
_add("var_mean.dim std_mean.dim", X, [1], values=NAN)
for _order in (2, 1, 0, 3, float("inf"), float("-inf")):
    _add("linalg_vector_norm.default", X, _order, [1])
    _add("norm.Scalar", X, _order)
    _add("norm.ScalarOpt_dim", X, _order, [0])
    _add("dist.default", X, Y, _order)
_add("norm.ScalarOpt_dtype", X, 2, dtype=torch.float32)
_add("norm.ScalarOpt_dim_dtype", X, 2, [1], False, dtype=torch.float32)
_add("frobenius_norm.dim", X, [0, 1])
_add("renorm.default", X, 2, 0, 1.0)
renorm_operation()  # torch knows it from now on
CASES[RENORM] = [Case(args=(X, INDEX[0], 1.0, 2.0), kwargs={}, poison=(0,))]

# -- normalisation -------------------------------------------------------------
_add("layer_norm.default", X, [4], ROW, ROW + 1, 1e-5)
_add("native_layer_norm.default", X, [4], ROW, ROW + 1, 1e-5, values=NAN)  # as var_mean
_add("_fused_rms_norm.default rms_norm.default", X, [4], ROW, 1e-5)
# Torch folds weight, bias and mean into one factor and one term: of infinite ones it makes NaN.
_add("group_norm.default", _data(2, 4, 3), 2, ROW, ROW + 1, 1e-5, values=NAN)
_add("native_group_norm.default", _data(2, 4, 3), ROW, ROW + 1, 2, 4, 3, 2, 1e-5, values=NAN)
_add(
    "instance_norm.default",
    *(_data(2, 4, 3), ROW, ROW + 1, None, None, True, 0.1, 1e-5, False),
    values=NAN,
)
_add("_weight_norm_interface.default _weight_norm.default", X, _data(3, 1).abs(), 0)
_BATCH = (_data(3, 4, 2), ROW, ROW + 1)
_add("_native_batch_norm_legit.no_stats", *_BATCH, True, 0.1, 1e-5, values=NAN)
_add(
    "_native_batch_norm_legit_functional.default",
    *(*_BATCH, ROW * 0, ROW.abs(), True, 0.1, 1e-5),
    values=NAN,
)
_add(
    "_native_batch_norm_legit_no_training.default",
    *(*_BATCH, ROW * 0, ROW.abs(), 0.1, 1e-5),
    values=NAN,
)
_add("softmax.int log_softmax.int _safe_softmax.default", X, 1)
_add("_softmax.default _log_softmax.default", X, 1, False)
_HEADS = (_data(1, 2, 3, 4), _data(1, 2, 3, 4, seed=1), _data(1, 2, 3, 4, seed=2))
# A row of NaN scores gives zeros in torch's kernel; in bfloat16 it rounds block by block.
_add("scaled_dot_product_attention.default", *_HEADS, values=NAN, more=True, half=False)

# -- losses -----------------------------------------------------------------------
for _reduction in (0, 1, 2):
    _add("cross_entropy_loss.default", X, CLASSES, ROW.abs(), _reduction)
    _add("nll_loss_nd.default nll_loss.default", X, CLASSES, None, _reduction)
    _add("mse_loss.default l1_loss.default", X, Y, _reduction)
_add("cross_entropy_loss.default", X, CLASSES, None, 1, -100, 0.1)
_add("cross_entropy_loss.default", X, P, None, 1)
_add("nll_loss_forward.default", X, CLASSES, ROW.abs(), 1, -100)
_add("nll_loss2d.default", _data(1, 4, 2, 2), torch.tensor([[[0, 1], [-100, 3]]]), None, 1)
_add("nll_loss2d_forward.default", _data(1, 4, 2, 2), torch.tensor([[[0, 1], [2, 3]]]), None, 1, -1)
_add("smooth_l1_loss.default huber_loss.default", X, Y, 0, 1.0)
_add("binary_cross_entropy.default", P, Y.sigmoid(), P, 0, poison=(2,))  # others are checked
_add("binary_cross_entropy_with_logits.default", X, P, None, None, 1)
_add("kl_div.default", X, P, 1, log_target=False)
_add("kl_div.default", X, Y, 1, log_target=True)
_add("poisson_nll_loss.default", X, P, True, False, 1e-8, 1)
_add("soft_margin_loss.default", X, SIGNS.float(), 1)
_add("hinge_embedding_loss.default", X, SIGNS, 1.0, 1)
_add("margin_ranking_loss.default", X, Y, SIGNS, 0.5, 1)
_add("multilabel_margin_loss.default", X, torch.tensor([[0, 2, -1, 1]] * 3), 1, half=False)
for _p in (1.0, 2.0, float("inf")):
    _add("pairwise_distance.default", X, Y, _p)
    _add("cdist.default", X, Y, _p, half=False, more=_p == float("inf"))
    _add("pdist.default", X, _p, half=False)
_add("cosine_similarity.default", X, Y, 1, 1e-8)
_add("cosine_embedding_loss.default", X, Y, SIGNS[0, :3], 0.1, 1)
_add("triplet_margin_loss.default", X, Y, Z)

# -- windows --------------------------------------------------------------------------
_LINE, _BLOCK = _data(1, 2, 6), _data(1, 1, 2, 4, 4)
_add("max_pool1d.default max_pool1d_with_indices.default avg_pool1d.default", _LINE, [3], [2], [1])
_add("max_pool2d.default max_pool2d_with_indices.default", IMAGE, [3, 2], [2, 2], [1, 0])
_add("max_pool2d.default avg_pool2d.default", IMAGE, [2, 2])
_add("max_pool3d.default max_pool3d_with_indices.default", _BLOCK, [2, 2, 2])
_add("avg_pool3d.default", _BLOCK, [2, 2, 2], half=False)
for _kind in ("avg", "max"):
    _add(f"adaptive_{_kind}_pool1d.default", _LINE, [4])
    _add(f"adaptive_{_kind}_pool2d.default", IMAGE, [3, 2])
    _add(f"adaptive_{_kind}_pool3d.default", _BLOCK, [1, 3, 2])
_add("_adaptive_avg_pool2d.default", IMAGE, [3, 2])
_add("_adaptive_avg_pool3d.default", _BLOCK, [1, 3, 2])
_add(
    "fractional_max_pool2d.default", IMAGE, [2, 2], [2, 3], torch.full((1, 2, 2), 0.3), poison=(0,)
)
_add(
    "fractional_max_pool3d.default",
    *(_BLOCK, [1, 2, 2], [1, 2, 2], torch.full((1, 1, 3), 0.3)),
    poison=(0,),
)
_ARGMAX = torch.tensor([[[[0, 3], [8, 15]], [[5, 2], [9, 12]]]])
_add("max_unpool2d.default", IMAGE[..., :2, :2], _ARGMAX, [4, 4])
_add(
    "max_unpool3d.default",
    IMAGE[:, :, None, :2, :2],
    _ARGMAX[:, :, None],
    [1, 4, 4],
    [1, 1, 1],
    [0, 0, 0],
)

# -- choices and sums of others ----------------------------------------------------------
_add("maximum.default minimum.default max.other min.other fmax.default fmin.default", X, Y)
_add("clamp_min.default clamp_max.default", X, 0.25)
_add("clamp_min.Tensor clamp_max.Tensor", X, Y)
for _how in ("sum", "prod", "mean", "amax", "amin"):
    _add("scatter_reduce.two", X, 0, INDEX, Y, _how)
    _add("scatter_reduce.two", X, 0, INDEX, Y, _how, include_self=False)
for _how in ("prod", "mean", "amax", "amin"):
    _add("index_reduce.default", X, 0, INDEX[0, :3], Y, _how)
for _how in ("sum", "mean", "max", "min", "prod"):
    _add("segment_reduce.default", X, _how, lengths=torch.tensor([1, 2]), axis=0)
_add("scatter.reduce", X, 0, INDEX, Y, reduce="add")
_add("scatter.reduce", X, 0, INDEX, Y, reduce="multiply")
_add("scatter.value_reduce", X, 0, INDEX, 2.0, reduce="multiply")
_add("scatter_add.default", X, 0, INDEX, Y)
_add("index_add.default", X, 0, INDEX[0, :3], Y)
for _mode in (0, 1, 2):
    _bags = (X, INDEX[0], torch.tensor([0, 2]), False, _mode)
    # Other results are empty where torch needs none; a maximum sees NaN only first in a bag.
    _options: dict[str, Any] = {"results": 1, "more": _mode == 2}
    _add("embedding_bag.default _embedding_bag.default", *_bags, **_options)
    _add("embedding_bag.padding_idx", *_bags, False, None, False, 1, **_options)
