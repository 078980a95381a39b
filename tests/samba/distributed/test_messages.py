"""What replicas send before their first step: no more than the logarithm of their number."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest

from samba.distributed import addresses
from samba.distributed.addresses import LOOPBACK
from samba.distributed.stores import HashStore
from tests.samba.distributed.listening import chosen
from tests.samba.distributed.processes import all_well, run_replicas, worker

SIZE = 5
ROUNDS = math.ceil(math.log2(SIZE))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_agreements_before_the_first_step_are_logarithmic(folder, engine):
    """No all-gather: gloo's is a message from each rank to each. Its broadcast is a tree."""
    ended = run_replicas(
        SIZE,
        worker("counted"),
        str(folder),
        seconds=240,
        env={"SN_DP_ENGINE": engine, "CCL_TIMEOUT": "120"},
    )
    all_well(ended)
    for end in ended:
        found = json.loads(end.out.splitlines()[-1])
        assert found["joining"] == {"barrier": 1, "exchange": ROUNDS}
        # PEF and layout; kernels; which tensors are set.
        sets = found["loading"].pop("broadcast")
        assert sets > 0
        assert found["loading"] == {"exchange": 3 * ROUNDS}
        reductions = found["step 2"].pop("all_reduce", 0)
        assert bool(reductions) == (engine == "torch")
        assert not found["step 2"]
        for checked in ("step 0", "step 1"):
            assert found[checked].pop("all_reduce", 0) == reductions
            assert found[checked] == {"exchange": ROUNDS}


class Counting:
    """A store that counts what is asked of it."""

    def __init__(self, inner: HashStore) -> None:
        self._inner = inner
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str):
        self.asked[name] += 1
        return getattr(self._inner, name)


@pytest.mark.parametrize("size", [2, 3, 17])
def test_replicas_choose_places_by_as_many_requests_whatever_their_number(size):
    inner = HashStore()
    stores = [Counting(inner) for _ in range(size)]
    assert all(place.shared for place in chosen(stores, LOOPBACK, ["here"] * size))
    asked = sorted(sum(store.asked.values()) for store in stores)
    assert asked == [4] * (size - 1) + [6]  # the last to come tells the others


def test_one_replica_elsewhere_is_known_to_all(monkeypatch):
    monkeypatch.setattr(addresses, "facing", lambda host: "10.0.0.1")
    for odd in range(4):
        spaces = ["there" if rank == odd else "here" for rank in range(4)]
        found = chosen([HashStore()] * 4, "10.0.0.1", spaces)
        assert not any(place.shared for place in found)
