"""Drawn calls of ops: what the harness says of them, and that no op aborts, hangs or is killed."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

from tests.emulator.fuzz.op_cases import NOT_DRAWN, arguments_of, draw, drawn_ops
from tests.fuzz.__main__ import main
from tests.fuzz.campaign import try_ops

SAMPLE = (
    *("aten.gcd.default", "aten.max_pool1d.default", "aten._linalg_svd.default"),
    *("aten.upsample_nearest1d.default", "aten.polygamma.default", "aten.special_zeta.default"),
    *("aten.hsplit.int", "aten.special_legendre_polynomial_p.default"),
)


def _same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a.nan_to_num(7), b.nan_to_num(7))
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return repr(a) == repr(b)


def test_every_op_has_arguments_and_a_seed_gives_the_same_ones() -> None:
    names = drawn_ops()
    assert len(names) + len(NOT_DRAWN) > 800
    for op in names:
        assert arguments_of(op) or op.endswith(("cat.default",)), op
        first, second = draw(op, 5), draw(op, 5)
        assert _same(first.args, second.args), op
        assert _same(list(first.kwargs.values()), list(second.kwargs.values())), op
    assert not _same(draw("aten.add.Tensor", 5).args, draw("aten.add.Tensor", 6).args)


def _finds(cases: Iterable[str]) -> tuple[list[str], list[str]]:
    """Labels of all cases, and what was found."""
    results = try_ops(cases)
    found = [f"{r.case}: {r.outcome.label}: {r.outcome.text}" for r in results if r.outcome.find]
    return [r.outcome.label for r in results], found


def test_a_sample_of_ops_ends_well() -> None:
    labels, found = _finds(f"{op}:{at % 2}" for at, op in enumerate(SAMPLE))
    assert len(labels) == len(SAMPLE)
    assert not found
    assert labels.count("ran") >= len(SAMPLE) / 2


def _labels_of_bad_lowerings(wanted: dict[str, str]) -> dict[str, str]:
    cases = [f"{op}:{next(s for s in range(999) if _ordinary(op, s))}" for op in wanted]
    results = try_ops(cases, plant="lowerings", deadline=5.0)
    assert [r.case for r in results] == cases
    assert all(r.outcome.find for r in results if "foreign" not in r.outcome.label)
    return {r.case.partition(":")[0]: r.outcome.label for r in results}


def _ordinary(op: str, seed: int) -> bool:
    x = draw(op, seed).args[0]
    return x.dtype == torch.float32 and 0 < x.numel() < 50 and seed % 2 == 0


@pytest.mark.slow
def test_bad_lowerings_are_found() -> None:
    wanted = {
        "aten.cosh.default": "foreign KeyError, torch accepts",
        "aten.sinh.default": "shape",
        "aten.cos.default": "signal 6",
    }
    assert _labels_of_bad_lowerings(wanted) == wanted


@pytest.mark.slow
def test_worse_lowerings_are_found() -> None:
    wanted = {
        "aten.exp.default": "hang",
        "aten.tan.default": "memory",
        "aten.sin.default": "signal 9",
    }
    assert _labels_of_bad_lowerings(wanted) == wanted


@pytest.mark.slow
def test_the_command_line_counts_and_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--op", "aten.add.Tensor", "--op-cases", "2", "--seed", "3"]) == 0
    assert capsys.readouterr().out.startswith("2 of 2 calls: ")
