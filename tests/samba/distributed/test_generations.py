"""Processes that were started together meet at a store that outlives them; ranks are threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from emulator.replicas.comm.errors import DataParallelError
from samba.distributed.stores import PrefixStore, Store, TCPStore, own_generation


def clients(count: int) -> list[Store]:
    """Clients of one store, as the processes of a job have them."""
    server = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=10), wait_for_workers=False)
    others = [
        TCPStore("127.0.0.1", server.port, None, False, timedelta(seconds=10))
        for _ in range(count - 1)
    ]
    return [PrefixStore("samba", store) for store in (server, *others)]


def together(stores: list[Store]) -> list[Store]:
    """All ranks of a generation."""
    size = len(stores)

    def one(rank: int) -> Store:
        return own_generation(stores[rank], rank=rank, size=size, seconds=10)

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(one, range(size)))


def test_each_generation_has_a_store_of_its_own():
    """Fewer, more, and as many as before, at a store that has all that was written."""
    stores = clients(4)
    for number, size in enumerate((3, 2, 4, 4, 1)):
        found = together(stores[:size])
        assert not found[0].check(["size"]), "what an earlier generation wrote is not here"
        found[0].set("size", str(number))
        assert all(int(store.get("size")) == number for store in found)


@pytest.mark.parametrize("left", ["hello/2/1", "hello/3/1"])
def test_who_asked_earlier_is_not_taken_for_one_of_this_generation(left):
    """A process was killed between asking and the answer, among as many or among more."""
    stores = clients(2)
    stores[1].set(left, "of a process that is gone")
    found = together(stores)
    found[0].set("key", "value")
    assert found[1].get("key") == b"value"


def test_who_does_not_come_is_named():
    (store,) = clients(1)
    with pytest.raises(DataParallelError, match="ranks 1, 2 of 3 replicas did not come") as caught:
        own_generation(store, rank=0, size=3, seconds=0.3)
    assert caught.value.ranks == (1, 2)
