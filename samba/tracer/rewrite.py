"""Functions that torch's exporter cannot take as they are, said in other words.

They read the value of a tensor on their way, to check it or to make a view, though the shape of
their result does not depend on it. Each has the same value and gradient as torch's own. Packed
sequences, whose shape does depend on it, are refused where they are made.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, NoReturn

import torch
import torch.nn.functional as F

from samba.tracer.ctc_sizes import check_ctc
from samba.tracer.data_dependent.constant_shapes import SELECTED
from samba.tracer.errors import DataDependentBranch
from samba.tracer.names import calling_line
from samba.tracer.torch_internals import node_of, pack_padded_sequence


def _cov(
    input: torch.Tensor,
    *,
    correction: int = 1,
    fweights: torch.Tensor | None = None,
    aweights: torch.Tensor | None = None,
) -> torch.Tensor:
    """``torch.cov`` without the check that weights are not negative.

    Args:
        input: Variables in rows, observations in columns; a vector is one variable.
        correction: Taken from the number of observations.
        fweights: How often each observation counts.
        aweights: How much each observation counts.
    """
    rows = input.unsqueeze(0) if input.dim() < 2 else input
    weights = fweights if aweights is None else aweights if fweights is None else None
    if fweights is not None and aweights is not None:
        weights = fweights * aweights
    if weights is None:
        total = torch.tensor(rows.shape[1], dtype=torch.int64)
        weighted = rows
    else:
        total = weights.sum()
        weighted = rows * weights
    mean = weighted.sum(1) / total
    if weights is not None and aweights is not None and correction != 0:
        norm = total - correction * (weights * aweights).sum() / total
    else:
        norm = total - correction
    centered = rows - mean.unsqueeze(1)
    other = centered if weights is None else centered * weights
    return torch.true_divide(centered @ other.t().conj(), norm.clamp(min=0)).squeeze()


def _corrcoef(input: torch.Tensor) -> torch.Tensor:
    """``torch.corrcoef`` by the rewritten covariance."""
    c = _cov(input)
    if c.dim() == 0:
        return c / c
    squares = c.diag()
    deviation = (squares.real if squares.is_complex() else squares).sqrt()
    c = c / deviation.view(-1, 1) / deviation.view(1, -1)
    if not c.is_complex():
        return c.clip(-1, 1)
    return torch.complex(c.real.clip(-1, 1), c.imag.clip(-1, 1))


def _narrow(input: torch.Tensor, dim: int, start: int | torch.Tensor, length: int) -> torch.Tensor:
    """``torch.narrow``, which may start where a tensor says."""
    if not isinstance(start, torch.Tensor):
        return torch.narrow(input, dim, start, length)
    first = torch.where(start < 0, start + input.shape[dim], start)
    return input.index_select(dim, first.reshape(1) + torch.arange(length, device=input.device))


def _combinations(input: torch.Tensor, r: int = 2, with_replacement: bool = False) -> torch.Tensor:
    """``torch.combinations`` by places that are known while tracing."""
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = list(choose(range(input.shape[0]), r))
    if not r or not places:
        return input.new_empty(0 if not r else (0, r))
    flat = torch.tensor([p for place in places for p in place], device=input.device)
    return input.index_select(0, flat).reshape(-1, r)


def _instance_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> torch.Tensor:
    """``torch.instance_norm``, whose update of running statistics is seen by the exporter.

    Every sample's channel is a channel of a batch norm of one sample; running statistics take
    the mean over the samples.
    """
    if running_mean is None or running_var is None or not use_input_stats:
        return torch.instance_norm(
            *(input, weight, bias, running_mean, running_var),
            *(use_input_stats, momentum, eps, cudnn_enabled),
        )
    batch, channels = input.shape[:2]
    mean, var = running_mean.repeat(batch), running_var.repeat(batch)
    out = F.batch_norm(
        input.reshape(1, batch * channels, *input.shape[2:]),
        mean,
        var,
        None if weight is None else weight.repeat(batch),
        None if bias is None else bias.repeat(batch),
        True,
        momentum,
        eps,
    )
    running_mean.copy_(mean.view(batch, channels).mean(0))
    running_var.copy_(var.view(batch, channels).mean(0))
    return out.reshape(input.shape)


def _functional_instance_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """``torch.nn.functional.instance_norm`` by the rewritten operation."""
    if running_mean is None or running_var is None or not use_input_stats:
        return F.instance_norm(
            *(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
        )
    return _instance_norm(
        *(input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, False)
    )


def _gaussian_nll_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    var: torch.Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:
    """``gaussian_nll_loss`` without the check that variances are not negative."""
    if not isinstance(var, torch.Tensor):
        return F.gaussian_nll_loss(input, target, var, full, eps, reduction)
    if var.shape == input.shape[:-1]:
        var = var.unsqueeze(-1)
    elif var.dim() != input.dim() or _mismatch(input, var) not in (0, 1):
        raise ValueError("var is of incorrect size")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not valid")
    # The floor changes the value, not the gradient.
    var = torch.where(var < eps, var + (eps - var).detach(), var)
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()


def _mismatch(input: torch.Tensor, var: torch.Tensor) -> int:
    """The sum of the sizes of ``var`` that differ: 1 if it has one entry for a whole dimension."""
    return sum(b for a, b in zip(input.shape, var.shape, strict=True) if a != b)


@cache
def _ctc_operation() -> Callable[..., torch.Tensor]:
    """``samba::ctc_loss``: torch's own cannot run on tensors without values.

    Made when it is first needed, since importing must leave torch as it is.
    """

    def ctc_loss(
        log_probs: torch.Tensor,
        targets: torch.Tensor,
        input_lengths: torch.Tensor,
        target_lengths: torch.Tensor,
        longest: int,
        blank: int,
        reduction: str,
        zero_infinity: bool,
    ) -> torch.Tensor:
        del longest
        return F.ctc_loss(
            *(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity)
        )

    operation = torch.library.custom_op("samba::ctc_loss", ctc_loss, mutates_args=())

    def shape_of(log_probs: torch.Tensor, *args: Any) -> torch.Tensor:
        batch = log_probs.shape[1:-1] if args[5] == "none" else ()
        return log_probs.new_empty(batch)

    operation.register_fake(shape_of)
    return operation


def _in_rows(targets: torch.Tensor, lengths: torch.Tensor | Sequence[int]) -> torch.Tensor:
    """Targets that a mask has selected, one after the other, as rows with padding behind.

    Only where the lengths are those of the mask's rows, so that each row has its own targets.
    """
    labels, mask = vars(targets).get(SELECTED, (None, None))
    if labels is None or mask is None or labels.dim() != 2 or labels.shape != mask.shape:
        return targets
    counted = node_of(lengths) if isinstance(lengths, torch.Tensor) else None
    selecting = node_of(mask)
    if counted is None or selecting is None or str(counted[0].target) != "aten.sum.dim_IntList":
        return targets
    source, dims, *_ = counted[0].args
    if source is not selecting[0] or dims not in ([1], [-1]):
        return targets
    order = torch.argsort(mask.logical_not().to(torch.int8), dim=1, stable=True)
    behind = torch.arange(labels.shape[1]) >= lengths.reshape(-1, 1)  # pyright: ignore[reportAttributeAccessIssue]  # a tensor, as found
    return labels.gather(1, order).masked_fill(behind, 0)


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor | Sequence[int],
    target_lengths: torch.Tensor | Sequence[int],
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> torch.Tensor:
    """``torch.nn.functional.ctc_loss`` as one operation, whose lengths may be tensors."""
    targets = _in_rows(targets, target_lengths)
    check_ctc(log_probs, targets, input_lengths, target_lengths, blank)
    longest = targets.shape[-1]
    if not isinstance(target_lengths, torch.Tensor):
        longest = max(target_lengths, default=0)
        target_lengths = torch.tensor(target_lengths, dtype=torch.int64)
    if not isinstance(input_lengths, torch.Tensor):
        input_lengths = torch.tensor(input_lengths, dtype=torch.int64)
    return _ctc_operation()(
        *(log_probs, targets, input_lengths, target_lengths, longest),
        *(blank, reduction, zero_infinity),
    )


def _multinomial(
    input: torch.Tensor, num_samples: int, replacement: bool = False, **kwargs: Any
) -> torch.Tensor:
    """``multinomial``, of which torch asks the kernel how many samples there may be."""
    if num_samples <= 0:
        raise RuntimeError(f"cannot sample n_sample <= 0 samples: {num_samples}")
    if not replacement and input.dim() and num_samples > input.shape[-1]:
        raise RuntimeError(
            "cannot sample n_sample > prob_dist.size(-1) samples without replacement: "
            f"{num_samples} of {input.shape[-1]}"
        )
    return torch.multinomial(input, num_samples, replacement, **kwargs)


def _linear_cross_entropy(*args: Any, options: Any = None, **kwargs: Any) -> torch.Tensor:
    """``linear_cross_entropy`` without the advice on how to cut it into chunks."""
    del options
    return F.linear_cross_entropy(*args, **kwargs)


def _rrelu(
    input: torch.Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
) -> torch.Tensor:
    """``rrelu``; in place, torch's exporter makes of it an operation that takes the noise."""
    if not inplace:
        return torch.rrelu(input, lower, upper, training)
    # Its gradient reads what it is given, which is not to be what is changed.
    return input.copy_(torch.rrelu(input.clone(), lower, upper, training))


def _rrelu_in_place(
    input: torch.Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
) -> torch.Tensor:
    """``torch.rrelu_`` by the rewritten function."""
    return _rrelu(input, lower, upper, training, True)


def _pack_padded_sequence(*args: Any, **kwargs: Any) -> NoReturn:
    """Refuses packed sequences; torch's exporter would go on and fail inside of the next layer."""
    raise DataDependentBranch(
        where=calling_line(),
        reason="forward() depends on the value of a tensor: the size of a packed sequence is the "
        "sum of its lengths",
        hint="Leave the batch padded and give the layer all of it. Mask what lies behind the "
        "lengths where it is used: torch.arange(steps) < lengths[:, None] says what counts, and "
        "of the forward direction the output at lengths - 1 is a sequence's last.",
    )


_ON_TENSORS: Mapping[Callable[..., Any], Callable[..., Any]] = MappingProxyType(
    {
        torch.cov: _cov,
        torch.Tensor.cov: _cov,
        torch.corrcoef: _corrcoef,
        torch.Tensor.corrcoef: _corrcoef,
        torch.narrow: _narrow,
        torch.Tensor.narrow: _narrow,
        torch.combinations: _combinations,
        torch.instance_norm: _instance_norm,
        F.rrelu: _rrelu,
        torch.rrelu_: _rrelu_in_place,
        pack_padded_sequence: _pack_padded_sequence,
        F.instance_norm: _functional_instance_norm,
        F.ctc_loss: _ctc_loss,
        torch.multinomial: _multinomial,
        torch.Tensor.multinomial: _multinomial,
        F.gaussian_nll_loss: _gaussian_nll_loss,
        F.linear_cross_entropy: _linear_cross_entropy,
    }
)


def rewritten(func: Callable[..., Any]) -> Callable[..., Any]:
    """What to call in the place of a function while a model is traced.

    Args:
        func: A function as torch passes it to ``__torch_function__``.

    Returns:
        Its rewritten form, or the function itself.
    """
    return _ON_TENSORS.get(func, func)
