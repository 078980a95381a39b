"""Upstream's collectives on host tensors, over torch's process groups.

In torch's default group each call waits as long as that group's own timeout says. A process that is
not in the ``comm`` of a call returns at once and does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from samba.distributed.bagua.torch_api.groups import (
    BaguaProcessGroup as BaguaProcessGroup,
    Comm as Comm,
    ReduceOp as ReduceOp,
    _get_default_group as _get_default_group,
    from_torch_group as from_torch_group,
    init_process_group as init_process_group,
    is_initialized as is_initialized,
    new_group as new_group,
)
from samba.distributed.bagua.world import get_backend as get_backend
from samba.errors import ArgumentError
from samba.tensor.views import view_detached


def send(tensor: torch.Tensor, dst: int, comm: Comm | None = None) -> None:
    """Send a tensor.

    Args:
        tensor: The tensor.
        dst: The rank that receives it.
        comm: The ranks; all if None.
    """
    if (group := _group(comm)) is not None:
        dist.send(_flat(tensor), group=group, group_dst=dst)


def recv(tensor: torch.Tensor, src: int, comm: Comm | None = None) -> None:
    """Receive a tensor.

    Args:
        tensor: Gets the values.
        src: The rank that sends them.
        comm: The ranks; all if None.
    """
    if (group := _group(comm)) is not None:
        dist.recv(_flat(tensor), group=group, group_src=src)


def broadcast(tensor: torch.Tensor, src: int = 0, comm: Comm | None = None) -> None:
    """Give all ranks the values of one.

    Args:
        tensor: The values, or what gets them.
        src: The rank that has them.
        comm: The ranks; all if None.
    """
    if (group := _group(comm)) is not None:
        dist.broadcast(_flat(tensor), group=group, group_src=src)


def broadcast_object(obj: object, src: int = 0, comm: Comm | None = None) -> object:
    """Give all ranks a pickled object of one.

    Args:
        obj: The object, on its rank.
        src: The rank that has it.
        comm: The ranks; all if None.

    Returns:
        The object.
    """
    if (group := _group(comm)) is None:
        return obj
    objects = [obj]
    dist.broadcast_object_list(objects, group=group, group_src=src)
    return objects[0]


def allreduce(
    send_tensor: torch.Tensor,
    recv_tensor: torch.Tensor,
    op: ReduceOp = ReduceOp.SUM,
    comm: Comm | None = None,
) -> None:
    """Reduce the tensors of all ranks, for all ranks.

    Args:
        send_tensor: What this rank gives.
        recv_tensor: Gets the result.
        op: The reduction, such as a sum.
        comm: The ranks; all if None.
    """
    if (group := _group(comm)) is not None:
        out = _sized(recv_tensor, send_tensor.numel(), "allreduce")
        out.copy_(_all_reduced(_flat(send_tensor).clone(), op, group))


def allreduce_inplace(
    tensor: torch.Tensor, op: ReduceOp = ReduceOp.SUM, comm: Comm | None = None
) -> None:
    """:func:`allreduce` of a tensor that gets the result."""
    if (group := _group(comm)) is not None:
        _all_reduced(_flat(tensor), op, group)


def reduce(
    send_tensor: torch.Tensor,
    recv_tensor: torch.Tensor,
    dst: int,
    op: ReduceOp = ReduceOp.SUM,
    comm: Comm | None = None,
) -> None:
    """Reduce the tensors of all ranks, for one rank; those of the others stay as they are.

    Args:
        send_tensor: What this rank gives.
        recv_tensor: Gets the result, on its rank.
        dst: The rank that gets it.
        op: The reduction, such as a sum.
        comm: The ranks; all if None.
    """
    if (group := _group(comm)) is None:
        return
    out = _sized(recv_tensor, send_tensor.numel(), "reduce")
    # A copy: gloo leaves parts of the sum in what the others gave.
    values = _flat(send_tensor).clone()
    dist.reduce(values, op=_torch_op(op), group=group, group_dst=dst)
    if dist.get_rank(group) == dst:
        out.copy_(_averaged(values, op, group))


def reduce_inplace(
    tensor: torch.Tensor, dst: int, op: ReduceOp = ReduceOp.SUM, comm: Comm | None = None
) -> None:
    """:func:`reduce` of a tensor that gets the result."""
    reduce(tensor, tensor, dst, op, comm)


def allgather(
    send_tensor: torch.Tensor, recv_tensor: torch.Tensor, comm: Comm | None = None
) -> None:
    """Give all ranks the tensors of all, in the order of ranks.

    Args:
        send_tensor: What this rank gives.
        recv_tensor: Gets them; as many elements as all have.
        comm: The ranks; all if None.
    """
    if (group := _group(comm)) is not None:
        size = dist.get_world_size(group)
        out = _sized(recv_tensor, size * send_tensor.numel(), "allgather")
        dist.all_gather(list(out.chunk(size)), _flat(send_tensor), group=group)


def allgather_inplace(tensor: torch.Tensor, comm: Comm | None = None) -> None:
    """:func:`allgather` of the part of a tensor that has this rank's place in it."""
    if (group := _group(comm)) is not None:
        parts = _parts(tensor, dist.get_world_size(group), "allgather_inplace")
        dist.all_gather(parts, parts[dist.get_rank(group)].clone(), group=group)


def _parts_at(
    rank: int, tensor: torch.Tensor, count: int, group: Any, where: str
) -> list[torch.Tensor] | None:
    """A part of ``count`` elements for each rank, on one rank; None on all others."""
    if dist.get_rank(group) != rank:
        return None
    size = dist.get_world_size(group)
    return list(_sized(tensor, size * count, where).chunk(size))


def gather(
    send_tensor: torch.Tensor, recv_tensor: torch.Tensor, dst: int, comm: Comm | None = None
) -> None:
    """Gather the tensors of all ranks on one rank, in the order of ranks.

    Args:
        send_tensor: What this rank gives.
        recv_tensor: Receives them on that rank; has as many elements as all of them together.
        dst: The rank.
        comm: The ranks; all if None.
    """
    if (group := _group(comm)) is None:
        return
    parts = _parts_at(dst, recv_tensor, send_tensor.numel(), group, "gather")
    dist.gather(_flat(send_tensor), parts, group=group, group_dst=dst)


def gather_inplace(tensor: torch.Tensor, count: int, dst: int, comm: Comm | None = None) -> None:
    """:func:`gather` of ``count`` elements of each rank; the one that gets them has its own in
    their place.
    """
    if (group := _group(comm)) is None:
        return
    own = _own_part(tensor, count, dst, group, "gather_inplace")
    gather(own.clone(), tensor, dst, comm)


def scatter(
    send_tensor: torch.Tensor, recv_tensor: torch.Tensor, src: int, comm: Comm | None = None
) -> None:
    """Give each rank its part of one rank's tensor.

    Args:
        send_tensor: The parts in the order of ranks, on that rank.
        recv_tensor: Gets this rank's part.
        src: The rank.
        comm: The ranks; all if None.
    """
    if (group := _group(comm)) is None:
        return
    parts = _parts_at(src, send_tensor, recv_tensor.numel(), group, "scatter")
    dist.scatter(_flat(recv_tensor), parts, group=group, group_src=src)


def scatter_inplace(tensor: torch.Tensor, count: int, src: int, comm: Comm | None = None) -> None:
    """:func:`scatter` of ``count`` elements to each rank; the one that gives them keeps its own in
    their place.
    """
    if (group := _group(comm)) is None:
        return
    own = _own_part(tensor, count, src, group, "scatter_inplace")
    part = own.clone()
    scatter(tensor, part, src, comm)
    own.copy_(part)


def reduce_scatter(
    send_tensor: torch.Tensor,
    recv_tensor: torch.Tensor,
    op: ReduceOp = ReduceOp.SUM,
    comm: Comm | None = None,
) -> None:
    """Reduce the tensors of all ranks, and give each rank its part of the result.

    Args:
        send_tensor: What this rank gives; as many elements as all parts have.
        recv_tensor: Gets this rank's part.
        op: The reduction, such as a sum.
        comm: The ranks; all if None.
    """
    if (group := _group(comm)) is None:
        return
    size = dist.get_world_size(group)
    parts = list(_sized(send_tensor, size * recv_tensor.numel(), "reduce_scatter").chunk(size))
    out = _flat(recv_tensor)
    dist.reduce_scatter(out, parts, op=_torch_op(op), group=group)
    _averaged(out, op, group)


def reduce_scatter_inplace(
    tensor: torch.Tensor, op: ReduceOp = ReduceOp.SUM, comm: Comm | None = None
) -> None:
    """:func:`reduce_scatter` of a tensor whose first part gets this rank's part of the result."""
    if (group := _group(comm)) is not None:
        parts = _parts(tensor, dist.get_world_size(group), "reduce_scatter_inplace")
        out = torch.empty_like(parts[0])
        reduce_scatter(tensor, out, op, comm)
        parts[0].copy_(out)


def alltoall(
    send_tensor: torch.Tensor, recv_tensor: torch.Tensor, comm: Comm | None = None
) -> None:
    """Send each rank a part of a tensor, and receive one from each, in the order of ranks.

    Args:
        send_tensor: The parts, of one size.
        recv_tensor: Gets those of the others; of the same size.
        comm: The ranks; all if None.
    """
    if (group := _group(comm)) is not None:
        _parts(send_tensor, dist.get_world_size(group), "alltoall")
        out = _sized(recv_tensor, send_tensor.numel(), "alltoall")
        dist.all_to_all_single(out, _flat(send_tensor), group=group)


def alltoall_inplace(tensor: torch.Tensor, comm: Comm | None = None) -> None:
    """:func:`alltoall` of a tensor that gets the parts of the others."""
    if _group(comm) is not None:
        alltoall(_flat(tensor).clone(), tensor, comm)


def alltoall_v(
    send_tensor: torch.Tensor,
    send_counts: Sequence[int],
    send_displs: Sequence[int],
    recv_tensor: torch.Tensor,
    recv_counts: Sequence[int],
    recv_displs: Sequence[int],
    comm: Comm | None = None,
) -> None:
    """:func:`alltoall` of parts of different sizes.

    Args:
        send_tensor: What this rank sends.
        send_counts: How many elements, by the rank that gets them.
        send_displs: The first of them, by rank.
        recv_tensor: Gets what others send; its other elements stay.
        recv_counts: How many elements, by the rank that sends them.
        recv_displs: The place of the first of them, by rank.
        comm: The ranks; all if None.
    """
    if (group := _group(comm)) is None:
        return
    size = dist.get_world_size(group)
    send_places = _places(send_tensor, send_counts, send_displs, size, "alltoall_v(send_…)")
    recv_places = _places(recv_tensor, recv_counts, recv_displs, size, "alltoall_v(recv_…)")
    packed = torch.cat(send_places)
    out = packed.new_empty(sum(part.numel() for part in recv_places))
    dist.all_to_all_single(
        out,
        packed,
        [part.numel() for part in recv_places],
        [part.numel() for part in send_places],
        group=group,
    )
    for place, part in zip(recv_places, out.split([p.numel() for p in recv_places]), strict=True):
        place.copy_(part)


def alltoall_v_inplace(
    tensor: torch.Tensor,
    counts: Sequence[int],
    displs: Sequence[int],
    comm: Comm | None = None,
) -> None:
    """:func:`alltoall_v` of a tensor that gets the parts of the others, in the same places."""
    if _group(comm) is not None:
        alltoall_v(_flat(tensor).clone(), counts, displs, tensor, counts, displs, comm)


def barrier(comm: Comm | None = None) -> None:
    """Return when all ranks have called it.

    Args:
        comm: The ranks; all if None.
    """
    if (group := _group(comm)) is not None:
        dist.barrier(group)


def _group(comm: Comm | None) -> Any:
    """torch's group of a call; None if this process is not in it."""
    if not is_initialized():
        raise ArgumentError(
            where="a collective of bagua",
            found="no process group",
            wanted="a call of init_process_group before it",
        )
    if comm is None:
        return dist.group.WORLD
    return comm.group if comm.rank() >= 0 else None


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    plain = view_detached(tensor)
    if not plain.is_contiguous():
        raise ArgumentError(
            where="a collective of bagua",
            found=f"a tensor of shape {tuple(tensor.shape)} that is not contiguous",
            wanted="a contiguous one",
        )
    return plain.view(-1)


def _sized(tensor: torch.Tensor, count: int, operation: str) -> torch.Tensor:
    flat = _flat(tensor)
    if flat.numel() != count:
        raise ArgumentError(
            where=operation, found=f"{flat.numel()} elements", wanted=f"{count} for these ranks"
        )
    return flat


def _parts(tensor: torch.Tensor, size: int, operation: str) -> list[torch.Tensor]:
    return list(_sized(tensor, tensor.numel() // size * size, operation).view(size, -1))


def _own_part(
    tensor: torch.Tensor, count: int, root: int, group: Any, operation: str
) -> torch.Tensor:
    """The elements of this rank in the tensor of an in-place call, which the root has all of."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank != root:
        return _sized(tensor, count, operation)
    return _sized(tensor, count * size, operation).view(size, count)[rank]


def _places(
    tensor: torch.Tensor,
    counts: Sequence[int],
    displacements: Sequence[int],
    size: int,
    operation: str,
) -> list[torch.Tensor]:
    flat = _flat(tensor)
    places = list(zip(counts, displacements, strict=False))[:size]
    if len(places) < size or any(n < 0 or at < 0 or at + n > flat.numel() for n, at in places):
        raise ArgumentError(
            where=operation,
            found=f"counts {list(counts)} and displacements {list(displacements)}",
            wanted=f"one of each for {size} ranks, within {flat.numel()} elements",
        )
    return [flat[at : at + n] for n, at in places]


def _torch_op(op: ReduceOp) -> Any:
    # gloo has no mean.
    return dist.ReduceOp.SUM if op == ReduceOp.AVG else getattr(dist.ReduceOp, ReduceOp(op).name)


def _averaged(values: torch.Tensor, op: ReduceOp, group: Any) -> torch.Tensor:
    if op != ReduceOp.AVG:
        return values
    size = dist.get_world_size(group)
    return values.div_(size, rounding_mode=None if values.is_floating_point() else "trunc")


def _all_reduced(values: torch.Tensor, op: ReduceOp, group: Any) -> torch.Tensor:
    dist.all_reduce(values, op=_torch_op(op), group=group)
    return _averaged(values, op, group)
