"""What torch refuses of the sizes that ``ctc_loss`` is given, and of lengths that are numbers.

Torch's own kernel, which asks, cannot run on tensors without values. Lengths in tensors are looked
at where a program runs: see ``emulator/op_facts/index_uses.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

Lengths = torch.Tensor | Sequence[int]


def check_ctc(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int,
) -> None:
    """Raise what torch raises.

    Args:
        log_probs: ``(T, N, C)`` or ``(T, C)``.
        targets: ``(N, S)``, or all of them one after another.
        input_lengths, target_lengths: One a sample.
        blank: The label that stands for none.

    Raises:
        RuntimeError: For what does not fit, with torch's text where it has one of its own.
        TypeError: If lengths are a tensor and a list.
    """
    if isinstance(input_lengths, torch.Tensor) != isinstance(target_lengths, torch.Tensor):
        raise TypeError("ctc_loss takes lengths as two tensors or as two lists")
    batch = log_probs.shape[1] if log_probs.dim() == 3 else 1
    times, classes = log_probs.shape[0], log_probs.shape[-1]
    for name, lengths in (("input_lengths", input_lengths), ("target_lengths", target_lengths)):
        if isinstance(lengths, torch.Tensor):
            if lengths.is_floating_point():
                raise RuntimeError(f"{name} must be integral")
            size = lengths.numel()
        else:
            size = len(lengths)
        if size != batch:
            raise RuntimeError(f"{name} must be of size batch_size: {size} for a batch of {batch}")
    if not 0 <= blank < classes:
        raise RuntimeError(f"blank must be in label range: {blank} of {classes} classes")
    in_rows = targets.dim() == 2
    if in_rows and targets.shape[0] != batch:
        raise RuntimeError(f"targets have {targets.shape[0]} rows for a batch of {batch}")
    if not isinstance(input_lengths, torch.Tensor):
        _check_each("input_lengths", input_lengths, times)
    if not isinstance(target_lengths, torch.Tensor):
        _check_each("target_lengths", target_lengths, targets.shape[-1])
        if not in_rows and log_probs.dim() == 3 and sum(target_lengths) != targets.shape[0]:
            raise RuntimeError(
                f"target_lengths are {sum(target_lengths)} labels together, and targets has "
                f"{targets.shape[0]}"
            )


def _check_each(name: str, lengths: Sequence[int], most: int) -> None:
    for length in lengths:
        if not 0 <= length <= most:
            raise RuntimeError(
                f"Expected {name} to have values from 0 to {most}, but got value {length}"
            )
