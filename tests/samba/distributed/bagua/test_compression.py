"""MinMaxUInt8: the codes, the error, and what is not finite."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from samba.distributed import bagua
from samba.errors import ArgumentError
from samba.tensor.compression import compress, compress_tensor, decompress
from tests.samba.distributed.bagua.lossy import both_ways, codes
from tests.samba.distributed.bagua.ranks import on_ranks


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
    assert error > 0.9 * bound  # it is no copy


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


def test_arguments():
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
