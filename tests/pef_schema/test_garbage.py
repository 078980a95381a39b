"""Python's thresholds for collecting garbage: raised for a while, and nobody's are lost."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from pef_schema.garbage import SELDOM_COLLECTED

_DEFAULT = (700, 10, 10)


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*_DEFAULT)
    yield
    gc.set_threshold(*before)


def test_thresholds_are_raised_and_put_back_also_after_an_error() -> None:
    with pytest.raises(KeyError), SELDOM_COLLECTED:
        assert gc.get_threshold()[0] > 10 * _DEFAULT[0]
        raise KeyError
    assert gc.get_threshold() == _DEFAULT


def test_contexts_may_be_nested_and_end_in_any_order() -> None:
    SELDOM_COLLECTED.__enter__()
    with SELDOM_COLLECTED:  # another thread's, which ends later
        SELDOM_COLLECTED.__exit__(None, None, None)
        assert gc.get_threshold() != _DEFAULT
    assert gc.get_threshold() == _DEFAULT


@pytest.mark.parametrize("own", [(0, 10, 10), (100_000, 5, 5)])
def test_thresholds_of_the_process_that_are_off_or_higher_stay(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    with SELDOM_COLLECTED:
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own


def test_what_the_body_sets_stays() -> None:
    with SELDOM_COLLECTED:
        gc.set_threshold(1234, 5, 6)
    assert gc.get_threshold() == (1234, 5, 6)
    with SELDOM_COLLECTED:
        pass
    assert gc.get_threshold() == (1234, 5, 6)


def test_an_error_on_the_way_in_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler of a signal may raise once the thresholds are set."""
    real = gc.set_threshold

    def interrupted(*values: int) -> None:
        real(*values)
        if values != _DEFAULT:
            raise KeyboardInterrupt

    monkeypatch.setattr(gc, "set_threshold", interrupted)
    with pytest.raises(KeyboardInterrupt), SELDOM_COLLECTED:
        raise AssertionError("the body ran")
    assert gc.get_threshold() == _DEFAULT
