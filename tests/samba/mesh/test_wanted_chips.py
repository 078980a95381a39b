"""What a command line or a config says of chips."""

from __future__ import annotations

import logging

import pytest

from samba.errors import ArgumentError
from samba.session import loading
from samba.session.loading import wanted_chips
from samba.support.deviations import Deviations


@pytest.mark.parametrize("config", [{}, {"n_chips": 1}, {"tensor_parallel": "none"}])
def test_one_chip_where_nothing_is_said(config: dict[str, object]) -> None:
    assert wanted_chips(config) is None


@pytest.mark.parametrize("count", [0, -1, "2", 2.0, True])
def test_numbers_of_chips_that_are_none(count: object) -> None:
    with pytest.raises(ArgumentError, match=r"--n-chips.*1 or more"):
        wanted_chips({"n_chips": count, "tensor_parallel": "batch"})


@pytest.mark.parametrize("split", ["weights", "", 3])
def test_splits_that_are_none(split: object) -> None:
    with pytest.raises(ArgumentError, match=r"--tensor-parallel.*none or batch or weight"):
        wanted_chips({"n_chips": 2, "tensor_parallel": split})


@pytest.mark.parametrize(
    "config",
    [{"n_chips": 4}, {"n_chips": 4, "tensor_parallel": "none"}, {"tensor_parallel": "weight"}],
)
def test_half_of_the_two_options_is_told(
    config: dict[str, object], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "deviations", Deviations())
    with caplog.at_level(logging.WARNING, logger="samba"):
        assert wanted_chips(config) is None
    assert "the program runs on one device [deviation: one-chip]" in caplog.text
