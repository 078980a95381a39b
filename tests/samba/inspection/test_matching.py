"""Matching two lists: nothing crosses, nothing is matched twice, and time stays in bounds."""

from __future__ import annotations

import itertools
import random
import time

from hypothesis import given, strategies as st

from samba.inspection.matching import matched

WORDS = st.lists(st.sampled_from("abcde"), max_size=12)


@given(WORDS, WORDS)
def test_matches_are_equal_and_ascend(a: list[str], b: list[str]) -> None:
    pairs = matched([a], [b])
    assert all(a[i] == b[j] for i, j in pairs)
    for (i, j), (k, m) in itertools.pairwise(pairs):
        assert i < k and j < m


@given(WORDS, st.integers(0, 12), st.sampled_from("xyz"))
def test_an_insertion_leaves_all_others_matched(a: list[str], at: int, new: str) -> None:
    b = [*a[:at], new, *a[at:]]
    assert len(matched([a], [b])) == len(a)
    assert len(matched([b], [a])) == len(a)


def test_less_sure_keys_fill_what_is_left() -> None:
    assert matched(["ab", "xx"], ["cb", "xx"]) == [(0, 0), (1, 1)]
    assert matched(["ab", "xy"], ["cb", "zy"]) == [(1, 1)]


def test_time_grows_with_the_length_alone() -> None:
    """Where every second item is another, where all are alike, and where all are shuffled."""
    count = 100_000
    numbers = list(range(count))
    other = [i if i % 2 else -i for i in numbers]
    shuffled = numbers.copy()
    random.Random(1).shuffle(shuffled)
    alike = ["ab"[random.Random(i).random() < 0.5] for i in range(2000)] * 50
    start = time.perf_counter()
    assert len(matched([numbers], [other])) == count // 2 + 1
    assert 0 < len(matched([numbers], [shuffled])) < count // 10
    assert len(matched([alike], [alike[7:] + alike[:7]])) > count // 2
    assert len(matched([["a"] * count], [["b"] + ["a"] * count])) == count
    assert time.perf_counter() - start < 30
