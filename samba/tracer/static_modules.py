"""Modules of torch that its exporter cannot take as they are, in words that a graph can hold.

``BatchNorm`` with ``momentum=None`` makes a Python number of its count of batches; the adaptive
softmax lists the rows of each cluster. Each form here has torch's own values and gradients; where
there is none, the module is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import nn

from samba.tensor.lazy_mode import traced_forward
from samba.tracer.errors import TraceError
from samba.tracer.names import calling_line
from samba.tracer.torch_internals import BatchNormBase, adaptive_log_probs, adaptive_result

__all__ = ["static_modules"]


@contextmanager
def static_modules() -> Iterator[None]:
    """While active, what this thread traces calls the static forms of torch's modules."""
    before: list[tuple[type[nn.Module], str, Callable[..., Any]]] = []
    try:
        for owner, methods in _FORMS.items():
            for name, form in methods.items():
                original = vars(owner)[name]
                before.append((owner, name, original))
                setattr(owner, name, _while_tracing(original, form))
        yield
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)


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
    seen = target.new_zeros(self.n_classes).index_select(0, target)
    output = input.new_zeros(target.shape[0])
    chosen = target.clamp(0, self.shortlist_size - 1) + seen
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
        hint="nn.LocalResponseNorm is the norm over neighbouring channels. The two differ: "
        "CrossMapLRN2d counts the first channel among the neighbours of all that come after it.",
    )


_FORMS: Mapping[type[nn.Module], Mapping[str, Callable[..., Any]]] = {
    BatchNormBase: {"forward": _batch_norm},
    nn.SyncBatchNorm: {"forward": _batch_norm},
    nn.CrossMapLRN2d: {"forward": _cross_map_norm},
    nn.AdaptiveLogSoftmaxWithLoss: {"forward": _adaptive_forward, "predict": _adaptive_predict},
}
