"""Waiting for small results."""

from __future__ import annotations

from emulator.plans.calls import Poller


class _Result:
    """Ready when asked for the given time."""

    def __init__(self, ready_after: int) -> None:
        self.asked, self._ready_after = 0, ready_after

    def is_ready(self) -> bool:
        self.asked += 1
        return self.asked > self._ready_after


def _asked(poller: Poller, ready_after: int) -> int:
    result = _Result(ready_after)
    poller.wait_briefly(result)
    return result.asked


def test_asks_until_the_result_is_there() -> None:
    poller = Poller()
    assert [_asked(poller, n) for n in (0, 7, 100)] == [1, 8, 101]


def test_leaves_long_steps_alone_for_a_while() -> None:
    poller = Poller()
    never = 10**9
    asked = [_asked(poller, never) for _ in range(300)]
    tried = [i for i, n in enumerate(asked) if n]
    assert tried[0] == 0
    assert len(tried) == 3
    assert max(asked) < 1000, "polling takes a core from whoever computes"


def test_asks_again_once_steps_are_short() -> None:
    poller = Poller()
    _asked(poller, 10**9)
    asked = [_asked(poller, 3) for _ in range(200)]
    assert asked[0] == 0
    assert asked[-1] == 4
