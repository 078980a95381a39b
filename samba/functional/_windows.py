"""Windows of a tensor at given places: what gathers read and scatters write."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from samba.errors import ArgumentError


def sn_gather(
    input_tensor: torch.Tensor,
    start_indices: torch.Tensor,
    gather_dims: Sequence[int],
    gather_lengths: Sequence[int],
    batched_dims: int = 0,
) -> torch.Tensor:
    """Reads windows of a tensor, as XLA's Gather does.

    Args:
        input_tensor: The source.
        start_indices: Whole numbers of shape [..., D]: where windows begin along the D gathered
            dimensions. A window that would reach over the edge is moved back inside.
        gather_dims: The gathered dimensions, counted after the batched ones.
        gather_lengths: Sizes of a window along them; along other dimensions it is whole.
        batched_dims: How many leading dimensions of source and indices belong together.

    Returns:
        Shape ``start_indices.shape[:-1]`` and then, for every dimension of the source that is
        not batched, its length or its size. Lengths of 1 stay.

    Raises:
        ArgumentError: Arguments do not fit each other.

    Example:
        >>> table, rows = torch.arange(12).view(4, 3), torch.tensor([[2], [0]])
        >>> sn_gather(table, rows, [0], [1])
        tensor([[[6, 7, 8]],
        <BLANKLINE>
                [[0, 1, 2]]])
    """
    where = "sn_gather"
    dims = _dims(where, input_tensor, start_indices, gather_dims, batched_dims)
    if len(gather_lengths) != len(dims):
        raise ArgumentError(
            where=f"{where}(gather_lengths)",
            found=f"{len(gather_lengths)} lengths",
            wanted=f"one for each of the {len(dims)} gather_dims",
        )
    for dim, length in zip(dims, gather_lengths, strict=True):
        if not 1 <= length <= input_tensor.shape[dim]:
            raise ArgumentError(
                where=f"{where}(gather_lengths)",
                found=f"{length} along dimension {dim}",
                wanted=f"1 to {input_tensor.shape[dim]}",
            )
    source = input_tensor.permute(_order(input_tensor, dims, batched_dims))
    starts = start_indices.long()
    spread = [1] * len(dims)
    indices = _batch_indices(input_tensor, starts, batched_dims, len(dims))
    for i, (dim, length) in enumerate(zip(dims, gather_lengths, strict=True)):
        start = starts[..., i].clamp(0, input_tensor.shape[dim] - length)
        steps = torch.arange(length, device=start.device)
        shape = [*spread[:i], length, *spread[i + 1 :]]
        indices.append(start.view([*start.shape, *spread]) + steps.view(shape))
    windows = source[tuple(indices)]
    return _to_input_order(windows, input_tensor, dims, batched_dims, starts.dim() - 1)


def sn_scatter(
    operand: torch.Tensor,
    update: torch.Tensor,
    start_indices: torch.Tensor,
    scatter_dims: Sequence[int],
    rmw_op: str = "kUpdate",
    unique_indices: bool = False,
    batched_dims: int = 0,
) -> torch.Tensor:
    """Writes windows into a copy of a tensor, as XLA's Scatter does.

    Args:
        operand: What is written into; it stays as it is.
        update: The windows: shape ``start_indices.shape[:-1]`` and then, for every dimension of
            the operand that is not batched, the size of a window.
        start_indices: Whole numbers of shape [..., D]: where windows begin along the D scattered
            dimensions. What falls outside of the operand is dropped.
        scatter_dims: The scattered dimensions, counted after the batched ones; windows are whole
            along the others.
        rmw_op: ``"kUpdate"`` replaces; of several windows at a place one is taken.
            ``"kAdd"`` adds.
        unique_indices: Accepted: a promise that no place is written twice.
        batched_dims: How many leading dimensions of operand and indices belong together.

    Returns:
        A new tensor of the operand's shape and dtype.

    Raises:
        ArgumentError: Arguments do not fit each other.

    Example:
        >>> counts = torch.zeros(4, dtype=torch.int64)
        >>> votes = torch.tensor([1, 3, 1])
        >>> sn_scatter(counts, torch.ones(3, 1).long(), votes[:, None], [0], rmw_op="kAdd")
        tensor([0, 2, 0, 1])
    """
    where = "sn_scatter"
    dims = _dims(where, operand, start_indices, scatter_dims, batched_dims)
    if rmw_op not in ("kUpdate", "kAdd"):
        raise ArgumentError(
            where=f"{where}(rmw_op)", found=repr(rmw_op), wanted="'kUpdate' or 'kAdd'"
        )
    places = start_indices.shape[:-1]
    windows = update.shape[len(places) :]
    lengths = dict(enumerate(windows, batched_dims))
    if (
        update.shape[: len(places)] != places
        or len(windows) != operand.dim() - batched_dims
        or any(size != operand.shape[d] for d, size in lengths.items() if d not in dims)
    ):
        free = range(batched_dims, operand.dim())
        window = ["length" if d in dims else str(operand.shape[d]) for d in free]
        raise ArgumentError(
            where=f"{where}(update)",
            found=f"shape {list(update.shape)}",
            wanted=f"shape [{', '.join([*map(str, places), *window])}]: that of start_indices "
            "without its last dimension, then that of a window",
        )
    order = _order(operand, dims, batched_dims)
    target = operand.permute(order)
    sizes = [operand.shape[d] for d in dims]
    head, tail = target.shape[:batched_dims], target.shape[batched_dims + len(dims) :]
    # One place beyond the end takes what falls outside.
    count = math.prod(sizes)
    flat = target.reshape([*head, count, *tail])
    flat = torch.cat([flat, flat.new_zeros([*head, 1, *tail])], batched_dims)
    starts = start_indices.long()
    spread = [1] * len(dims)
    place = torch.zeros([], dtype=torch.int64, device=starts.device)
    inside = torch.ones([], dtype=torch.bool, device=starts.device)
    for i, (dim, size) in enumerate(zip(dims, sizes, strict=True)):
        length = lengths[dim]
        steps = torch.arange(length, device=starts.device)
        shape = [*spread[:i], length, *spread[i + 1 :]]
        index = starts[..., i].view([*places, *spread]) + steps.view(shape)
        inside = inside & (index >= 0) & (index < size)
        place = place * size + index
    place = torch.where(inside, place, count)
    indices = [*_batch_indices(operand, starts, batched_dims, len(dims)), place]
    values = update.permute(
        [
            *range(len(places)),
            *(len(places) + d - batched_dims for d in order[batched_dims:]),
        ]
    )
    written = flat.index_put(tuple(indices), values.to(operand.dtype), accumulate=rmw_op == "kAdd")
    result = written.narrow(batched_dims, 0, count).reshape([*head, *sizes, *tail])
    return result.permute([order.index(d) for d in range(operand.dim())])


def _dims(
    where: str, tensor: torch.Tensor, indices: torch.Tensor, dims: Sequence[int], batched: int
) -> list[int]:
    """Dimensions counted from the first of the tensor, checked."""
    free = tensor.dim() - batched
    if batched < 0 or free < 0 or tensor.shape[:batched] != indices.shape[:batched]:
        raise ArgumentError(
            where=f"{where}(batched_dims)",
            found=f"{batched} for shapes {list(tensor.shape)} and {list(indices.shape)}",
            wanted="a number of leading dimensions that have equal sizes in both",
        )
    positions = [d + batched if 0 <= d < free else -1 for d in dims]
    if not positions or -1 in positions or len(set(positions)) != len(positions):
        raise ArgumentError(
            where=f"{where}, dimensions",
            found=str(list(dims)),
            wanted=f"different dimensions from 0 to {free - 1}, counted after the batched ones",
        )
    if indices.dim() <= batched or indices.shape[-1] != len(positions):
        raise ArgumentError(
            where=f"{where}(start_indices)",
            found=f"shape {list(indices.shape)}",
            wanted=f"a last dimension of {len(positions)}: one index for each of {list(dims)}",
        )
    if indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool:
        raise ArgumentError(
            where=f"{where}(start_indices)", found=str(indices.dtype), wanted="whole numbers"
        )
    return positions


def _order(tensor: torch.Tensor, dims: list[int], batched: int) -> list[int]:
    """Batched dimensions first, then those that are indexed, then the rest."""
    return [*range(batched), *dims, *(d for d in range(batched, tensor.dim()) if d not in dims)]


def _batch_indices(
    tensor: torch.Tensor, starts: torch.Tensor, batched: int, windows: int
) -> list[torch.Tensor]:
    """An index along each batched dimension that says: the same as in the indices."""
    rank = starts.dim() - 1 + windows
    return [
        torch.arange(tensor.shape[d], device=starts.device).view(
            [tensor.shape[d] if i == d else 1 for i in range(rank)]
        )
        for d in range(batched)
    ]


def _to_input_order(
    taken: torch.Tensor, source: torch.Tensor, dims: list[int], batched: int, places: int
) -> torch.Tensor:
    """Puts the dimensions of windows in the order of the source's."""
    order = _order(source, dims, batched)[batched:]
    windows = [places + order.index(d) for d in range(batched, source.dim())]
    return taken.permute([*range(places), *windows])
