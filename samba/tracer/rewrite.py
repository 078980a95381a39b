"""Functions and modules of torch that its exporter cannot take as they are, said in other words.

Some read the value of a tensor on their way, to check it or to make a view, though the shape of
their result does not depend on it; some modules make a Python number of a count, or list the rows
of a cluster. Each form here has torch's own values and gradients; where there is none, the function
or the module is refused.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import nn

from samba.tensor.lazy_mode import traced_forward
from samba.tracer.errors import DataDependentBranch, TraceError
from samba.tracer.torch_internals import (
    APPLY,
    GROUPED_MM,
    BatchNormBase,
    adaptive_log_probs,
    adaptive_result,
    pack_padded_sequence,
)
from samba.tracer.torch_patches import replaced
from samba.tracer.user_code import calling_line
from samba.tracer.whole_functions import ctc_loss, grouped_mm

# -- functions ----------------------------------------------------------------------


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
        correction: The number of observations is reduced by it.
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


_HALVES = frozenset({torch.bfloat16, torch.float16})
_WITH_MOMENTS = frozenset(
    {
        *("native_layer_norm", "native_group_norm", "native_batch_norm"),
        *("_native_batch_norm_legit", "_native_batch_norm_legit_no_training"),
    }
)
"""Names of norms that give the moments of their data, too: of functions and of operations."""


def _moments_in_float32(
    norm: Callable[..., Any], input: torch.Tensor, *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, ...]:
    """A norm of 16-bit data whose moments are of float32, as those of its kernel are.

    That is so beside parameters of float32; torch's exporter says that they are of 16 bits.
    """
    parameters = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
    if input.dtype not in _HALVES or not any(t.dtype is torch.float32 for t in parameters):
        return norm(input, *args, **kwargs)
    result, *moments = norm(input.float(), *args, **kwargs)
    return (result.to(input.dtype), *moments)


def _pack_padded_sequence(*args: Any, **kwargs: Any) -> NoReturn:
    """Refuses packed sequences; torch's exporter would go on and fail inside of the next layer."""
    raise DataDependentBranch(
        where=calling_line(),
        reason="forward() depends on the value of a tensor: the size of a packed sequence is the "
        "sum of its lengths",
        hint="Leave the batch padded and give the layer all of it. Mask steps beyond the lengths "
        "where they are used: torch.arange(steps) < lengths[:, None] marks the valid steps, and "
        "the last output of a sequence's forward direction is at lengths - 1.",
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
        torch.rrelu_: partial(_rrelu, inplace=True),
        pack_padded_sequence: _pack_padded_sequence,
        F.instance_norm: _functional_instance_norm,
        F.ctc_loss: ctc_loss,
        torch.multinomial: _multinomial,
        torch.Tensor.multinomial: _multinomial,
        F.gaussian_nll_loss: _gaussian_nll_loss,
        GROUPED_MM: grouped_mm,
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
    if getattr(func, "__name__", "").partition(".")[0] in _WITH_MOMENTS:
        return partial(_moments_in_float32, func)
    return _ON_TENSORS.get(func, func)


# -- modules ------------------------------------------------------------------------


@contextmanager
def static_modules(model: nn.Module) -> Iterator[None]:
    """While active, what this thread traces calls the static forms of torch's modules.

    Args:
        model: The model that is traced.
    """
    paths = {id(module): path for path, module in model.named_modules()}
    forms = [(owner, method, form) for owner, of in _FORMS.items() for method, form in of.items()]
    forms.append((nn.Module, APPLY, partial(_unmoved, paths)))
    with ExitStack() as stack:
        for owner, method, form in forms:
            own = _while_tracing(vars(owner)[method], form)
            stack.enter_context(replaced(owner, **{method: own}))
        yield


def _while_tracing(original: Callable[..., Any], form: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if traced_forward() is None:
            return original(self, *args, **kwargs)
        return form(original, self, *args, **kwargs)

    return method


def _batch_norm(original: Callable[..., Any], self: Any, input: torch.Tensor) -> torch.Tensor:
    """A batch norm whose running statistics are the mean over all batches, if that is asked for.

    The statistics of the batch are what running statistics become at momentum 1.
    """
    count = self.num_batches_tracked if self.training and self.track_running_stats else None
    if self.momentum is not None or count is None or self.running_mean is None:
        return original(self, input)
    self._check_input_dim(input)
    count.add_(1)
    mean, var = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
    out = F.batch_norm(input, mean, var, self.weight, self.bias, True, 1.0, self.eps)
    factor = 1.0 / count.double()
    for running, own in ((self.running_mean, mean), (self.running_var, var)):
        running.copy_(factor * own + (1.0 - factor) * running)
    return out


def _adaptive_forward(
    original: Callable[..., Any], self: Any, input_: torch.Tensor, target_: torch.Tensor
) -> Any:
    """The adaptive softmax with every cluster for every row; a mask keeps the row's own."""
    rows = 2 if target_.dim() == 1 else 1
    if target_.dim() > 1 or input_.dim() != rows or input_.shape[:-1] != target_.shape:
        return original(self, input_, target_)  # which says what is wrong with the shapes
    input, target = input_.reshape(-1, input_.shape[-1]), target_.reshape(-1)
    # Torch checks the targets; reading this says to the device what is in range.
    zeros = target.new_zeros(self.n_classes).index_select(0, target)
    output = input.new_zeros(target.shape[0])
    chosen = target.clamp(0, self.shortlist_size - 1) + zeros
    for i, (low, high) in enumerate(itertools.pairwise(self.cutoffs)):
        mine = (target >= low) & (target < high)
        # Zeros: what torch leaves out must not bring its own NaN into the gradient.
        own = torch.where(mine.unsqueeze(1), input, 0.0)
        log_probs = F.log_softmax(self.tail[i](own), dim=1)
        place = (target - low).clamp(0, high - low - 1).unsqueeze(1)
        output = torch.where(mine, log_probs.gather(1, place).squeeze(1), output)
        chosen = torch.where(mine, self.shortlist_size + i, chosen)
    head = F.log_softmax(self.head(input), dim=1)
    output = output + head.gather(1, chosen.unsqueeze(1)).squeeze(1)
    loss = (-output).mean()
    return adaptive_result(output.reshape(target_.shape), loss)


def _adaptive_predict(original: Callable[..., Any], self: Any, input: torch.Tensor) -> torch.Tensor:
    """The likeliest class of each row: of all classes where the head says no short one."""
    del original
    head = self.head(input)
    short = torch.argmax(head, dim=1)
    whole = torch.argmax(adaptive_log_probs(self, input, head), dim=1)
    return torch.where(short >= self.shortlist_size, whole, short)


def _cross_map_norm(original: Callable[..., Any], self: Any, input: torch.Tensor) -> NoReturn:
    """Refuses ``CrossMapLRN2d``: its own function resizes tensors, forward and backward."""
    del original, self, input
    raise TraceError(
        where=calling_line(),
        reason="nn.CrossMapLRN2d resizes tensors as it computes, which cannot be traced",
        hint="Use nn.LocalResponseNorm, the norm over neighbouring channels. Its results differ: "
        "CrossMapLRN2d counts the first channel among the neighbours of all later ones.",
    )


def _unmoved(
    paths: Mapping[int, str],
    original: Callable[..., Any],
    self: nn.Module,
    fn: Callable[[torch.Tensor], torch.Tensor],
    *args: Any,
    **kwargs: Any,
) -> nn.Module:
    """``to``, ``float``, ``half``, ... of a module: fine where nothing changes, else refused.

    Torch's exporter cannot swap a parameter while it traces, not even for itself. Routers of
    mixtures of experts say ``self.classifier.to(torch.float32)`` in ``forward``, which mostly
    changes nothing.

    Args:
        paths: The modules of the model, by identity; others are not concerned.
        original: Torch's own.
        self: The module.
        fn: What torch does with a tensor.
        args, kwargs: What torch's own takes beside that.

    Raises:
        TraceError: If the module would get another dtype or device: a PEF holds each parameter in
            one dtype.
    """
    if id(self) not in paths:
        return original(self, fn, *args, **kwargs)
    for name, tensor in [*self.named_parameters(), *self.named_buffers()]:
        with torch.no_grad():
            result = fn(tensor)
        for before, after in ((tensor.dtype, result.dtype), (tensor.device, result.device)):
            if before != after:
                raise TraceError(
                    where=f"{calling_line()} (in module {paths[id(self)] or 'model'})",
                    reason="forward() converts the parameters of a module: "
                    f"{name} from {before} to {after}",
                    hint="A compiled parameter has one dtype. Convert the module before you "
                    "compile, or convert the tensor where it is used: "
                    "F.linear(x, self.weight.to(dtype)).",
                )
    return self


_FORMS: Mapping[type[nn.Module], Mapping[str, Callable[..., Any]]] = {
    BatchNormBase: {"forward": _batch_norm},
    nn.SyncBatchNorm: {"forward": _batch_norm},
    nn.CrossMapLRN2d: {"forward": _cross_map_norm},
    nn.AdaptiveLogSoftmaxWithLoss: {"forward": _adaptive_forward, "predict": _adaptive_predict},
}
