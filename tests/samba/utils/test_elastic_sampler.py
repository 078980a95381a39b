"""ElasticSampler: every sample once, however many replicas there are, and when they change."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from torch.utils.data import DataLoader, DistributedSampler

from samba.errors import ArgumentError
from samba.utils import ElasticSampler


def samplers(length: int, batch: int, size: int, **more) -> list[ElasticSampler]:
    return [
        ElasticSampler(range(length), batch, num_replicas=size, rank=rank, **more)
        for rank in range(size)
    ]


@given(
    st.integers(1, 60),
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5)), max_size=5),
    st.booleans(),
)
def test_no_sample_is_dealt_twice_or_left_out(length, batch, schedule, shuffle):
    """So many replicas make so many steps, again and again; the last ones end the epoch."""
    seen: list[int] = []
    state = samplers(length, batch, 1, shuffle=shuffle)[0].state_dict()
    for size, steps in [*schedule, (2, length)]:
        ranks = samplers(length, batch, size, shuffle=shuffle, even_batches=False)
        for sampler in ranks:
            sampler.load_state_dict(state)
        if ranks[0].epoch:
            break
        dealt = [list(sampler) for sampler in ranks]
        assert [len(of_rank) for of_rank in dealt] == [len(sampler) for sampler in ranks]
        for step in range(steps):
            for sampler, of_rank in zip(ranks, dealt, strict=True):
                mine = of_rank[step * batch : (step + 1) * batch]
                seen += mine
                if mine:
                    sampler.advance()
        # Who has the most batches knows how far the job is; rank 0 is one of them.
        state = ranks[0].state_dict()
    assert sorted(seen) == list(range(length))
    assert state["epoch"] == 1
    assert state["position"] == 0


@pytest.mark.parametrize("shuffle", [False, True])
def test_with_batches_of_one_it_is_torchs_sampler(shuffle):
    for rank in range(3):
        ours = ElasticSampler(range(11), 1, num_replicas=3, rank=rank, shuffle=shuffle, seed=5)
        theirs = DistributedSampler(range(11), 3, rank, shuffle, seed=5)
        for epoch in range(2):
            ours.set_epoch(epoch)
            theirs.set_epoch(epoch)
            assert list(ours) == list(theirs)


@pytest.mark.parametrize(
    ("even", "drop", "expected"),
    [
        (True, False, [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 0, 1]]),
        (True, True, [[0, 1, 4, 5], [2, 3, 6, 7]]),
        (False, False, [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7]]),
        (False, True, [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7]]),
    ],
)
def test_the_end_of_an_epoch(even, drop, expected):
    ranks = samplers(10, 2, 2, shuffle=False, even_batches=even, drop_last=drop)
    assert [list(sampler) for sampler in ranks] == expected
    for sampler, of_rank in zip(ranks, expected, strict=True):
        sampler.advance(len(of_rank) // 2 - 1)
        assert sampler.epoch == 0
        sampler.advance()
        assert (sampler.epoch, sampler.position) == (1, 0)


def test_a_batch_that_is_not_full_is_the_last_of_its_replica():
    ranks = samplers(11, 2, 2, shuffle=False, even_batches=False)
    assert [list(sampler)[4:] for sampler in ranks] == [[8, 9], [10]]
    ranks = samplers(11, 2, 2, shuffle=False, even_batches=False, drop_last=True)
    assert [list(sampler)[4:] for sampler in ranks] == [[8, 9], []]


def test_the_epoch_under_way_goes_on_and_another_begins():
    (sampler,) = samplers(6, 2, 1, shuffle=False)
    sampler.advance()
    sampler.set_epoch(0)
    assert list(sampler) == [2, 3, 4, 5]
    sampler.set_epoch(1)
    assert list(sampler) == list(range(6))


def test_what_a_loader_fetches_ahead_does_not_count():
    (sampler,) = samplers(8, 2, 1, shuffle=False)
    loader = DataLoader(range(8), batch_size=2, sampler=sampler)
    batches = iter(loader)
    assert [next(batches).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    sampler.advance()
    assert sampler.state_dict()["position"] == 2
    assert [batch.tolist() for batch in loader] == [[2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"length": 9}, r"found length 9, expected length 8"),
        ({"seed": 1}, r"found seed 1, expected seed 0"),
        ({"shuffle": True}, "found shuffle True"),
        ({"position": -1}, "a dict of epoch, position"),
        ({"epoch": 1.5}, "a dict of epoch, position"),
    ],
)
def test_a_state_of_something_else_is_refused(change, match):
    (sampler,) = samplers(8, 2, 1, shuffle=False)
    with pytest.raises(ArgumentError, match=match):
        sampler.load_state_dict(sampler.state_dict() | change)
    with pytest.raises(ArgumentError, match="a dict of epoch"):
        sampler.load_state_dict({"epoch": 0})


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"batch_size": 0}, r"ElasticSampler\(batch_size\)"),
        ({"num_replicas": 0}, r"ElasticSampler\(num_replicas\)"),
        ({"rank": 2}, "rank 2 of 2"),
        ({"seed": -1}, r"ElasticSampler\(seed\)"),
    ],
)
def test_arguments_that_cannot_be(arguments, match):
    with pytest.raises(ArgumentError, match=match):
        ElasticSampler(range(8), **{"batch_size": 2, "num_replicas": 2, "rank": 0} | arguments)
    (sampler,) = samplers(8, 2, 1)
    with pytest.raises(ArgumentError, match="set_epoch"):
        sampler.set_epoch(-1)
