"""Buckets of Bagua's tensors, and their compression."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

from emulator.replicas.comm import CollectiveTimeout, DataParallelError
from samba.distributed import bagua
from samba.distributed.bagua.operations import shift_one_peer
from samba.errors import ArgumentError
from samba.tensor.bagua import register
from samba.tensor.compression import compress, compress_tensor, decompress
from tests.samba.distributed.bagua.lossy import both_ways, codes
from tests.samba.distributed.bagua.ranks import on_ranks

# -- buckets ---------------------------------------------------------------------------


def tensors(rank: int = 0, module: str = "m", dtype: torch.dtype = torch.float32):
    made = enumerate(drawn(rank, dtype))
    return [bagua.ensure_bagua_tensor(t, f"t{i}", module) for i, t in made]


def drawn(rank: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in ((2, 3), (5,), ())]


def values(rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.cat([t.flatten() for t in drawn(rank, dtype)])


def communicate(bucket: bagua.BaguaBucket) -> torch.Tensor:
    bucket.backend.register_ordered_buckets([bucket])
    for t in bucket.tensors:
        bagua.bagua_mark_communication_ready(t)
    assert bucket.backend.wait_pending_comm_ops() == 1
    return torch.cat([t.flatten() for t in bucket.tensors])


def test_flatten_puts_tensors_into_one_piece():
    ts = tensors()
    before = [t.clone() for t in ts]
    bucket = bagua.BaguaBucket(ts, "b", alignment=8)
    assert bucket.numel == 16
    assert bucket.check_flatten()
    start = ts[0].data_ptr()
    assert [t.data_ptr() - start for t in ts] == [0, 24, 44]
    assert all(a.equal(b) for a, b in zip(ts, before, strict=True))
    assert bucket.padding is not None
    assert bucket.padding.tolist() == [0] * 4
    ts[1].set_(torch.zeros(5).untyped_storage(), 0, (5,))
    assert not bucket.check_flatten()


def test_without_flatten_tensors_stay():
    ts = tensors()
    places = [t.data_ptr() for t in ts]
    bucket = bagua.BaguaBucket(ts, "b", flatten=False)
    assert [t.data_ptr() for t in ts] == places
    assert not bucket.check_flatten()


def test_tensors_of_a_bucket_go_together():
    a = bagua.ensure_bagua_tensor(torch.zeros(2), "a", "m")
    b = bagua.ensure_bagua_tensor(torch.zeros(2, dtype=torch.float16), "b", "n")
    with pytest.raises(ArgumentError, match=r"module m, n; type torch.float32, torch.float16"):
        bagua.BaguaBucket([a, b], "b")
    with pytest.raises(ArgumentError, match="no tensors"):
        bagua.BaguaBucket([], "b")
    with pytest.raises(ArgumentError, match="without a module"):
        bagua.BaguaBucket([bagua.ensure_bagua_tensor(torch.zeros(1), "c")], "b")


@pytest.mark.parametrize("flatten", [True, False])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("scattergather", [True, False])
@pytest.mark.parametrize("hierarchical", [True, False])
def test_centralized(flatten, average, scattergather, hierarchical):
    def work(world):
        bucket = bagua.BaguaBucket(tensors(world.rank), "b", flatten=flatten, alignment=5)
        bucket.append_centralized_synchronous_op(hierarchical, average, scattergather)
        return communicate(bucket)

    results = on_ranks(3, work, nodes=[[0, 1], [2]])
    total = sum(values(r).double() for r in range(3))
    wanted = (total / 3 if average else total).float()
    for result in results:
        # Two additions below 4 are rounded, by 2**-23 at most, and so is the wanted sum.
        torch.testing.assert_close(result, wanted, rtol=0, atol=3 * 2**-23)
        assert result.equal(results[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types(dtype):
    def work(world):
        bucket = bagua.BaguaBucket(tensors(world.rank, dtype=dtype), "b")
        return communicate(bucket.append_centralized_synchronous_op())

    results = on_ranks(2, work)
    wanted = (values(0, dtype) + values(1, dtype)) / 2
    assert all(r.equal(wanted) for r in results)


def test_whole_numbers_are_summed_and_not_averaged():
    def work(world, average):
        t = bagua.ensure_bagua_tensor(torch.tensor([1, world.rank]), "t", f"m{average}")
        bucket = bagua.BaguaBucket([t], "b").append_centralized_synchronous_op(average=average)
        return communicate(bucket).tolist()

    assert on_ranks(3, lambda w: work(w, False)) == [[3, 3]] * 3
    with pytest.raises(bagua.BucketError, match="average=False"):
        on_ranks(3, lambda w: work(w, True))


def test_operations_run_in_order_and_are_cleared():
    def work(world):
        (t, *_) = ts = tensors(world.rank)
        names = []
        bucket = bagua.BaguaBucket(ts, "b")
        bucket.append_python_op(lambda name: names.append((name, t.clone())))
        bucket.append_centralized_synchronous_op()
        bucket.append_python_op(lambda name: t.mul_(2))
        result = communicate(bucket)[:6]
        assert [n for n, _ in names] == ["b"]
        assert names[0][1].flatten().equal(values(world.rank)[:6])
        bucket.clear_ops()
        assert communicate(bucket)[:6].equal(result)
        return result

    wanted = values(0)[:6] + values(1)[:6]
    for result in on_ranks(2, work):
        assert result.equal(wanted)


def test_an_error_of_a_python_op_reaches_the_waiter():
    def fail(name):
        raise KeyError("no such thing")

    def work(world):
        communicate(bagua.BaguaBucket(tensors(world.rank), "b7").append_python_op(fail))

    with pytest.raises(bagua.BucketError, match=r"rank 0: bucket b7 of m: KeyError") as caught:
        on_ranks(1, work)
    assert (caught.value.rank, caught.value.bucket, caught.value.ranks) == (0, "b7", (0,))
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_rank_that_does_not_come_is_named():
    met = threading.Event()

    def work(world):
        bucket = bagua.BaguaBucket(tensors(world.rank), "b")
        bucket.append_centralized_synchronous_op()
        bucket.backend.register_ordered_buckets([bucket])
        if world.rank == 1:
            met.wait(20)
            return
        try:
            for t in bucket.tensors:
                bagua.bagua_mark_communication_ready(t)
            with pytest.raises(bagua.BucketError, match=r"rank 0: bucket b .*rank 1") as caught:
                bucket.backend.wait_pending_comm_ops()
            assert caught.value.ranks == (1,)
            assert isinstance(caught.value.__cause__, CollectiveTimeout)
        finally:
            met.set()

    on_ranks(2, work, deadline=1.0)


def many_buckets(rank: int, count: int = 4):
    made = []
    for i in range(count):
        t = bagua.ensure_bagua_tensor(torch.full((3,), float(10**i * (rank + 1))), f"t{i}", "m")
        made.append(bagua.BaguaBucket([t], f"b{i}").append_centralized_synchronous_op())
    return made


def test_buckets_leave_in_the_order_of_registration():
    def work(world):
        buckets = many_buckets(world.rank)
        left = []
        for bucket in buckets:
            bucket.append_python_op(left.append)
        backend = buckets[0].backend
        backend.register_ordered_buckets(buckets)
        for turn in range(3):
            order = [3, 1, 0, 2] if (world.rank + turn) % 2 else [2, 0, 3, 1]
            for i in order:
                bagua.bagua_mark_communication_ready(buckets[i].tensors[0])
                time.sleep(0.002 * world.rank)
            assert backend.wait_pending_comm_ops() == 4
        assert left == ["b0", "b1", "b2", "b3"] * 3
        assert backend.wait_pending_comm_ops() == 0
        return [b.tensors[0][0].item() for b in buckets]

    assert on_ranks(2, work) == [[1.5, 15, 150, 1500]] * 2


def test_without_the_queue_the_sums_would_be_wrong():
    """What the order is good for: collectives in the order of readiness mix up tensors."""

    def work(world):
        buckets = many_buckets(world.rank, 2)
        for bucket in buckets[:: -1 if world.rank else 1]:
            bucket.run_ops()
        return [b.tensors[0][0].item() for b in buckets]

    assert on_ranks(2, work) != [[1.5, 15]] * 2


def test_a_tensor_that_is_not_marked_holds_up_what_follows():
    def work(world):
        first, second = many_buckets(world.rank, 2)
        first.backend.register_ordered_buckets([first, second])
        bagua.bagua_mark_communication_ready(second.tensors[0])
        assert first.backend.wait_pending_comm_ops() == 0
        bagua.bagua_mark_communication_ready(first.tensors[0])
        assert first.backend.wait_pending_comm_ops() == 2

    on_ranks(2, work)


def test_the_values_of_a_tensor_are_waited_for_before_its_bucket_is_communicated():
    log = []
    tensors = [
        bagua.ensure_bagua_tensor(
            torch.zeros(2), f"t{i}", "waits", lambda t, i=i: (log.append(f"ask {i}"), t)[1]
        )
        for i in range(2)
    ]
    bucket = bagua.BaguaBucket(tensors, "both", flatten=False)
    bucket.append_python_op(lambda name: log.append(f"run {name}"))
    backend = bagua.get_backend("waits")
    backend.register_ordered_buckets([bucket])
    log.clear()
    for tensor in tensors:
        bagua.bagua_mark_communication_ready(tensor)
    assert backend.wait_pending_comm_ops() == 1
    assert log == ["ask 0", "ask 1", "run both"]


def test_a_bucket_of_padding_alone_is_refused():
    tensor = bagua.ensure_bagua_tensor(torch.zeros(2), "bagua_padding_tensor_mine", "hollow")
    bucket = bagua.BaguaBucket([tensor], "nothing")
    with pytest.raises(DataParallelError, match="bucket nothing is empty"):
        bucket.backend.register_ordered_buckets([bucket])


def test_names_and_memory_are_registered_once():
    a = bagua.ensure_bagua_tensor(torch.zeros(4), "a", "once")
    again = bagua.to_bagua_tensor(a, "again", "once")
    same = register(torch.zeros(4), "a", "once")
    buckets = [
        bagua.BaguaBucket([t], f"{i}", flatten=False) for i, t in enumerate((a, again, same))
    ]
    with pytest.raises(ArgumentError) as caught:
        bagua.get_backend("once").register_ordered_buckets(buckets)
    assert "'again' in the memory of 'a'" in str(caught.value)
    assert "name 'a' twice" in str(caught.value)


def test_a_backend_a_module():
    assert bagua.get_backend("x") is bagua.get_backend("x")
    assert bagua.get_backend("x") is not bagua.get_backend("y")


@pytest.mark.parametrize("mode", ["all", "shift_one"])
def test_decentralized_leaves_the_bucket_until_it_is_copied_back(mode):
    def work(world):
        bucket = bagua.BaguaBucket(tensors(world.rank), "b")
        peer = torch.zeros(12)
        op = bucket.append_decentralized_synchronous_op(peer, False, mode)
        history = []
        for _ in range(2):
            assert communicate(bucket).equal(values(world.rank))
            history.append(peer.clone())
        op.copy_back_peer_weight(bucket)
        assert bucket.flattened_tensor().equal(peer)
        return history

    for rank, history in enumerate(on_ranks(4, work)):
        for step, result in enumerate(history):
            group = range(4) if mode == "all" else (rank, shift_one_peer(rank, 4, step))
            wanted = sum(values(r) for r in group) / len(group)
            assert result.equal(wanted)


def test_shift_one_pairs():
    for size in (2, 4, 6, 8):
        for step in range(9):
            peers = [shift_one_peer(r, size, step) for r in range(size)]
            assert all(peers[p] == r != p for r, p in enumerate(peers))
        met = {shift_one_peer(0, size, step) for step in range(size)}
        assert met == set(range(size // 2, size))
    with pytest.raises(ArgumentError, match="an even number"):
        shift_one_peer(0, 3, 0)


def test_arguments():
    bucket = bagua.BaguaBucket(tensors(module="args"), "b")
    with pytest.raises(ArgumentError, match="MinMaxUInt8"):
        bucket.append_centralized_synchronous_op(compression="zip")
    with pytest.raises(ArgumentError, match="shift_one"):
        bucket.append_decentralized_synchronous_op(torch.zeros(12), peer_selection_mode="x")
    with pytest.raises(ArgumentError, match="12 elements"):
        bucket.append_decentralized_synchronous_op(torch.zeros(11))
    with pytest.raises(ArgumentError, match="'all'"):
        bucket.append_asynchronous_model_average_op("shift_one")
    assert not bucket.operations


# -- compression -----------------------------------------------------------------------


def back(data: np.ndarray, size: int) -> np.ndarray:
    out = np.empty(size, np.float32)
    decompress(data, out)
    return out


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e3])
def test_codes_and_error(seed, scale):
    x = torch.randn(500, generator=torch.Generator().manual_seed(seed)) * scale + scale * seed
    data = compress(x.numpy())
    assert data[:8].view(np.float32).tolist() == [x.min().item(), x.max().item()]
    assert torch.from_numpy(data[32:]).equal(codes(x))
    error = np.abs(back(data, 500) - x.numpy()).max()
    bound = (x.max() - x.min() + 1e-7).item() / 510  # half a code
    # The product that is rounded to a code is rounded to float32 before, and the quotient is.
    assert error <= bound + x.abs().max().item() * 2**-22
    assert error > 0.9 * bound  # it is not a copy


@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 1e-9])
def test_all_the_same(value):
    x = np.full(7, value, np.float32)
    # Half a code of the range of 1e-7 that stands for none; product and quotient are rounded.
    np.testing.assert_allclose(back(compress(x), 7), x, rtol=2**-22, atol=1e-7 / 510)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_not_hidden(bad):
    x = np.array([1, bad, 2], np.float32)
    assert np.isnan(back(compress(x), 3)).all()


def test_a_range_that_float32_does_not_hold():
    assert np.isnan(back(compress(np.array([3e38, -3e38], np.float32)), 2)).all()


def test_nothing_is_nothing():
    assert back(compress(np.empty(0, np.float32)), 0).size == 0


def test_arguments_of_compression():
    x = torch.ones(6)
    with pytest.raises(ArgumentError, match="MinMaxUInt8"):
        compress_tensor(x, "zip", 2)
    with pytest.raises(ArgumentError, match="4 chunks of 6"):
        compress_tensor(x, "MinMaxUInt8", 4)
    for chunk in (-2, 2):
        with pytest.raises(ArgumentError, match=f"target_chunk {chunk} of 2 chunks"):
            compress_tensor(x, "MinMaxUInt8", 2, chunk)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compressed_mean_of_a_bucket(size, dtype):
    def part(rank):
        generator = torch.Generator().manual_seed(rank)
        return torch.randn(8 * size, generator=generator).to(dtype)

    def work(world):
        t = bagua.ensure_bagua_tensor(part(world.rank), "t", "m")
        bucket = bagua.BaguaBucket([t], "b")
        bucket.append_centralized_synchronous_op(scattergather=True, compression="MinMaxUInt8")
        bucket.run_ops()
        return t

    results = on_ranks(size, work)
    assert all(r.equal(results[0]) for r in results)
    wanted = both_ways([part(r).float() for r in range(size)])
    assert results[0].equal(wanted.to(dtype))
