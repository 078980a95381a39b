"""Functions of torch that are one operation of a graph: ``ctc_loss`` and grouped products.

* Torch's own kernel of ``ctc_loss`` cannot run on tensors without values, and it is this kernel
  that asks whether sizes fit. So they are asked here, and so are lengths that are numbers. Lengths
  in tensors are looked at where a program runs: see ``emulator/op_facts/index_uses.py``.
* Torch's kernel of grouped products takes types on a CPU that its exporter does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from samba.tracer.data_dependent.constant_shapes import SELECTED
from samba.tracer.torch_internals import node_of

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
        NotImplementedError: If ``log_probs`` are whole numbers or bools.
    """
    if not log_probs.is_floating_point():
        raise NotImplementedError(
            f"ctc_loss of log_probs of {log_probs.dtype}: expected a float type"
        )
    if log_probs.dim() not in (2, 3):
        raise RuntimeError(f"log_probs have {log_probs.dim()} dimensions: expected 2 or 3")
    batch = log_probs.shape[1] if log_probs.dim() == 3 else 1
    times, classes = log_probs.shape[0], log_probs.shape[-1]
    for name, lengths in (("input_lengths", input_lengths), ("target_lengths", target_lengths)):
        if isinstance(lengths, torch.Tensor):
            if lengths.is_floating_point() or lengths.dtype == torch.bool:
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


def _check_kinds(
    targets: Any, input_lengths: Any, target_lengths: Any, blank: Any, zero_infinity: Any
) -> None:
    """Raise ``TypeError`` for arguments of other kinds than torch takes."""
    lengths = (input_lengths, target_lengths)
    of_tensors = all(isinstance(each, torch.Tensor) for each in lengths)
    of_numbers = all(
        isinstance(each, (list, tuple)) and all(map(_is_whole, each)) for each in lengths
    )
    if not (of_tensors or of_numbers):
        raise TypeError("ctc_loss takes lengths as two tensors, or as two lists of whole numbers")
    for name, value, fits, kind in (
        ("targets", targets, isinstance(targets, torch.Tensor), "a tensor"),
        ("blank", blank, _is_whole(blank), "a whole number"),
        ("zero_infinity", zero_infinity, isinstance(zero_infinity, bool), "a bool"),
    ):
        if not fits:
            raise TypeError(f"ctc_loss(): {name} is a {type(value).__name__}, not {kind}")


def _is_whole(value: Any) -> bool:
    """Whether torch takes a value for a whole number: NumPy's, too, but no bool."""
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _check_each(name: str, lengths: Sequence[int], most: int) -> None:
    for length in lengths:
        if not 0 <= length <= most:
            raise RuntimeError(
                f"Expected {name} to have values from 0 to {most}, but got value {length}"
            )


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


def ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor | Sequence[int],
    target_lengths: torch.Tensor | Sequence[int],
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> torch.Tensor:
    """``torch.nn.functional.ctc_loss`` as one operation, whose lengths may be tensors."""
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    _check_kinds(targets, input_lengths, target_lengths, blank, zero_infinity)
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
        *(int(blank), reduction, zero_infinity),
    )


_TYPES = (torch.float32, torch.float16)
"""Types that only the kernel takes. bfloat16 is taken by both."""

_ALIGNED = 16
"""Bytes of which the stride of a row has to be a multiple."""


@cache
def _operation() -> Callable[..., torch.Tensor]:
    """``samba::grouped_mm``.

    Made when it is first needed, since importing must leave torch as it is.
    """

    def grouped_mm(
        mat_a: torch.Tensor, mat_b: torch.Tensor, offs: torch.Tensor | None
    ) -> torch.Tensor:
        return F.grouped_mm(mat_a, mat_b, offs=offs)

    operation = torch.library.custom_op("samba::grouped_mm", grouped_mm, mutates_args=())
    operation.register_fake(grouped_form)
    return operation


def grouped_form(
    mat_a: torch.Tensor, mat_b: torch.Tensor, offs: torch.Tensor | None = None
) -> torch.Tensor:
    """A tensor of the form that a grouped product has, of any values.

    Args:
        mat_a, mat_b, offs: As of :func:`grouped_mm`.
    """
    groups = () if offs is None else (offs.shape[0],)
    if mat_a.dim() == mat_b.dim():
        return mat_a.new_empty(*(groups or mat_a.shape[:-2]), mat_a.shape[-2], mat_b.shape[-1])
    return mat_a.new_empty(mat_a.shape[-2], mat_b.shape[-1])


def grouped_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``torch.nn.functional.grouped_mm``, also of float32 and float16.

    Args:
        mat_a: (rows, in), or (groups, rows, in).
        mat_b: (in, columns), or (groups, in, columns).
        offs: int32 (groups,): where each group ends along an axis that both are cut along.
        bias, out_dtype: As torch takes them.

    Returns:
        (rows, columns), with a group's axis before them where torch has one.

    Raises:
        RuntimeError: Where torch raises it: if sizes do not fit, or strides are not aligned.
    """
    if mat_a.dtype not in _TYPES or mat_b.dtype != mat_a.dtype or bias is not None:
        return F.grouped_mm(mat_a, mat_b, offs=offs, bias=bias, out_dtype=out_dtype)
    if out_dtype not in (None, mat_a.dtype):
        raise RuntimeError("Grouped gemm output dtype must match `mat_a` dtype")
    _check(mat_a, mat_b, offs)
    return _operation()(mat_a, mat_b, offs)


def _check(mat_a: torch.Tensor, mat_b: torch.Tensor, offs: torch.Tensor | None) -> None:
    """Raise what torch's kernel raises of shapes, strides and the type of offsets."""
    for name, matrix in (("mat_a", mat_a), ("mat_b", mat_b)):
        if matrix.dim() not in (2, 3):
            raise RuntimeError(f"{name} has to be 2 or 3d")
    flat = [matrix for matrix in (mat_a, mat_b) if matrix.dim() == 2]
    if (offs is None) == bool(flat):
        raise RuntimeError(
            "Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d"
        )
    if offs is not None and offs.dtype != torch.int32:
        raise RuntimeError("Offsets have to be int32")
    if len(flat) < 2 and mat_a.shape[-1] != mat_b.shape[-2]:
        raise RuntimeError("contraction dimension of mat_a and mat_b must match")
    groups = [matrix.shape[0] for matrix in (mat_a, mat_b) if matrix.dim() == 3]
    if offs is not None and any(count != offs.shape[0] for count in groups):
        raise RuntimeError("matrix batch sizes have to match")
    if not flat and mat_a.shape[0] != mat_b.shape[0]:
        raise RuntimeError("batched dimension has to match")
    for matrix in (mat_a, mat_b):
        _check_strides(matrix)


def _check_strides(matrix: torch.Tensor) -> None:
    for inner, outer in ((-2, -1), (-1, -2)):
        stride = matrix.stride(outer)
        if matrix.stride(inner) == 1 and stride >= max(1, matrix.shape[inner]):
            if stride * matrix.element_size() % _ALIGNED:
                raise RuntimeError("strides should be multiple of 16 bytes")
            return
    strides, sizes = [*matrix.stride()], [*matrix.shape]
    raise RuntimeError(f"Invalid strides/sizes, got {strides} for strides and {sizes} for sizes")
