"""Dropout in a form that stays in the graph at every rate.

Torch leaves no operation where a rate is 0, and numbers in the place of the rate where dropout
works in place or on whole channels. The rate is an argin, and a PEF must not depend on what it
was when it was compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from samba.support.deviations import tell
from samba.tracer.names import calling_line
from samba.tracer.traced import carries_gradient

_ELEMENTS = (F.dropout, torch.dropout, torch.dropout_)
_CHANNELS = {F.dropout1d: (3, 2), F.dropout2d: (4, 3), F.dropout3d: (5, 4)}
"""Dimensions with and without a batch; 2-d dropout takes the latter for a batch of sequences."""
_FEATURES = (torch.feature_dropout, torch.feature_dropout_)
_FIXED = (
    *(F.alpha_dropout, torch.alpha_dropout, torch.alpha_dropout_),
    *(F.feature_alpha_dropout, torch.feature_alpha_dropout, torch.feature_alpha_dropout_),
)
"""Their results are scaled by a function of the rate, which is a number of the graph."""
_IN_PLACE = (torch.dropout_, torch.feature_dropout_)

DROPOUTS = frozenset((*_ELEMENTS, *_CHANNELS, *_FEATURES, *_FIXED))

ZERO_RATE = sys.float_info.min
"""Stands for rate 0 while tracing: at 0 the result would be the input itself, not a new tensor."""


def keep_dropout(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.Tensor | None:
    """Compute dropout with ``native_dropout``, which every trace keeps.

    Args:
        func: One of :data:`DROPOUTS`.
        args, kwargs: Its arguments.

    Returns:
        Its result, None where torch's own function does as well.
    """
    tensor, rate, train, inplace = _arguments(func, *args, **kwargs)
    if func in _ELEMENTS and not train and not inplace and 0 <= rate <= 1:
        return tensor  # torch does so, too; its exporter would make a new tensor of it
    if not train or not carries_gradient(tensor):
        return None
    if func in _FIXED:
        if rate:
            tell(
                "fixed-dropout-rate",
                f"{calling_line()}: {func.__name__} drops at rate {rate:g} in every run; neither "
                "session.run(train=False) nor hyperparam_dict changes it. Evaluate with a PEF "
                "compiled for inference",
            )
        return None
    if func in _ELEMENTS:
        if rate != 0 and not inplace:
            return None
        result = torch.native_dropout(tensor, rate or ZERO_RATE, True)[0]
    elif func in _FEATURES:
        if tensor.dim() < 2:
            return None  # torch raises
        shape = (*tensor.shape[:2], *(1,) * (tensor.dim() - 2))
        result = tensor * torch.native_dropout(tensor.new_ones(shape), rate or ZERO_RATE, True)[0]
    else:
        batched, single = _CHANNELS[func]
        if tensor.dim() not in (batched, single):
            return None  # torch warns
        kept = 1 if tensor.dim() == single and func is not F.dropout2d else 2
        shape = (*tensor.shape[:kept], *(1,) * (tensor.dim() - kept))
        result = tensor * torch.native_dropout(tensor.new_ones(shape), rate or ZERO_RATE, True)[0]
    return tensor.copy_(result) if inplace else result


def _arguments(
    func: Callable[..., Any],
    input: torch.Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    train: bool | None = None,
) -> tuple[torch.Tensor, float, bool, bool]:
    training = training if train is None else train
    return input, p, training, inplace or func in _IN_PLACE
