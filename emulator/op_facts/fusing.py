"""Which ops a compiler keeps out of memory, by computing them within what reads them.

XLA computes an elementwise op again in each of its readers rather than keep its result, as long as
all of them are loops over elements themselves; a result that a product or a convolution reads lies
in memory. What takes long for an element, such as an exponential, is not computed twice.
"""

from __future__ import annotations

import enum

from emulator.op_facts.moves import FREE, VIEWS
from emulator.op_facts.table import op_facts

__all__ = ["Fusing", "fusing_of"]


class Fusing(enum.Enum):
    """What becomes of a result, and of what is read for it."""

    VIEW = "view"
    """The result is what the op takes, under another shape."""
    CHEAP = "cheap"
    """Elementwise: computed within each of its readers if all of these can hold it."""
    DEAR = "dear"
    """Elementwise and slow: computed within its reader if there is one alone."""
    REDUCES = "reduces"
    """What it reads may be computed within it; its own result lies in memory."""
    APART = "apart"
    """What it reads lies in memory, and so does its result."""

    @property
    def holds(self) -> bool:
        """Whether what it reads may be computed within it."""
        return self is not Fusing.APART


_DEAR_NAMES = """
gelu silu sigmoid tanh exp exp2 expm1 log log2 log10 log1p logit log_sigmoid erf erfc erfinv
softplus mish elu selu celu sin cos tan asin acos atan atan2 sinh cosh asinh acosh atanh pow
float_power sqrt rsqrt lgamma digamma hardswish
"""
_DEAR = frozenset(_DEAR_NAMES.split())
"""By plain name."""

_NORM_NAMES = """
_native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training
native_batch_norm batch_norm group_norm instance_norm layer_norm native_layer_norm native_group_norm
rms_norm _fused_rms_norm
"""
_NORMS = frozenset(_NORM_NAMES.split())
"""Norms: small moments lie in memory, what they shift and scale is elementwise."""

_SOFTMAX = frozenset(["softmax", "_softmax", "log_softmax", "_log_softmax", "_safe_softmax"])

_REDUCING_NAMES = """
sum mean amax amin argmax argmin max min var std var_mean std_mean logsumexp prod any all norm
linalg_vector_norm cross_entropy_loss nll_loss nll_loss_nd nll_loss_forward mse_loss l1_loss
smooth_l1_loss huber_loss kl_div binary_cross_entropy binary_cross_entropy_with_logits
_adaptive_avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
"""
_REDUCING = frozenset(_REDUCING_NAMES.split())

_GATHERS_NAMES = """
embedding index index_select gather take take_along_dim scatter index_put index_copy masked_scatter
"""
_GATHERS = frozenset(_GATHERS_NAMES.split())
"""Moves by index."""


def fusing_of(op: str) -> Fusing:
    """What becomes of an op's result and of what is read for it.

    Args:
        op: Its full name.

    Returns:
        APART for an op of which nobody has said anything else.

    Example:
        >>> fusing_of("aten.relu.default"), fusing_of("aten.tanh.default")
        (<Fusing.CHEAP: 'cheap'>, <Fusing.DEAR: 'dear'>)
        >>> fusing_of("aten.view.default"), fusing_of("aten.linear.default")
        (<Fusing.VIEW: 'view'>, <Fusing.APART: 'apart'>)
    """
    if op in VIEWS:
        return Fusing.VIEW
    plain = (op.split(".") * 2)[1]
    if plain in _NORMS:
        return Fusing.CHEAP
    if plain in _SOFTMAX:
        return Fusing.DEAR
    if plain in _REDUCING:
        return Fusing.REDUCES
    if op in FREE:
        return Fusing.APART if plain in _GATHERS else Fusing.CHEAP
    facts = op_facts().get(op)
    if facts is None or not facts.cheap:
        return Fusing.APART
    return Fusing.DEAR if plain in _DEAR else Fusing.CHEAP
