"""Agreements: the right answer on every rank, by few messages."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, strategies as st

from emulator.replicas.comm.agreement import same_on_all_ranks, texts_unless_same
from emulator.replicas.comm.errors import PeerLost
from emulator.replicas.comm.inprocess import InProcess, run_ranks
from emulator.replicas.comm.protocol import Communicator

TEXTS = st.sampled_from([b"", b"a", b"b", b"a" * 1000])


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=9))
def test_every_rank_has_the_right_answer(values: list[tuple[bytes, bytes]]) -> None:
    found = run_ranks(len(values), lambda comm: same_on_all_ranks(comm, values[comm.rank]))
    assert found == [[len(set(column)) == 1 for column in zip(*values, strict=True)]] * len(values)


@pytest.mark.parametrize("size", [2, 3, 5, 8, 13])
def test_one_rank_that_differs_is_seen_by_all_wherever_it_is(size: int) -> None:
    for odd in range(size):
        texts = [b"odd" if rank == odd else b"same" for rank in range(size)]
        found = run_ranks(size, lambda comm, texts=texts: texts_unless_same(comm, texts[comm.rank]))
        assert found == [texts] * size


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, int]]:
    """What rank 0 calls, with the bytes that it brings."""
    counts: Counter[tuple[str, int]] = Counter()
    meet = InProcess._meet

    def counting(self: InProcess, call: str, brought: object) -> list[object]:
        if self.rank == 0:
            part = brought[1] if isinstance(brought, tuple) else brought
            nbytes = part.nbytes if isinstance(part, np.ndarray) else len(part)
            counts[call.split(maxsplit=1)[0], nbytes] += 1
        return meet(self, call, brought)

    monkeypatch.setattr(InProcess, "_meet", counting)
    return counts


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 16, 17, 33])
def test_a_rank_sends_as_many_messages_as_the_logarithm_has(sent, size: int) -> None:
    text = b"x" * 5000
    assert run_ranks(size, lambda comm: texts_unless_same(comm, text)) == [None] * size
    rounds = math.ceil(math.log2(size))
    assert sent == ({("exchange", 17): rounds} if rounds else {})


def test_texts_are_gathered_only_where_they_differ(sent) -> None:
    texts = [b"one", b"two!", b"one"]
    assert run_ranks(3, lambda comm: texts_unless_same(comm, texts[comm.rank])) == [texts] * 3
    assert sent == {("exchange", 17): 2, ("gather_bytes", 3): 1}


def test_a_rank_that_is_gone_is_an_error_on_the_others() -> None:
    def work(comm: Communicator) -> list[bytes] | None:
        if comm.rank == 1:
            raise ValueError("no")
        return texts_unless_same(comm, b"here")

    found = run_ranks(5, work, deadline=20)
    assert isinstance(found[1], ValueError)
    assert all(isinstance(error, PeerLost) for i, error in enumerate(found) if i != 1)
