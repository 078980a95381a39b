"""The benchmark: its contenders compute the same, and its numbers are put together rightly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import models, peers
from bench.__main__ import main
from bench.errors import LossesDiffer, WorkerFailed
from bench.report import CaseResult, ContenderResult, Spread, table, to_json
from bench.run import Worker, check_losses, run_case

ROOT = Path(__file__).parents[1]

SMALL = [
    models.logreg(),
    models.logreg(name="logreg-64", batch=64),
    models.res_ffn(batch=16, width=64, classes=30),
    models.lenet(batch=4),
    models.gpt(batch=2, length=16, vocabulary=64, layers=2, heads=2, width=32),
]
"""Every case, as small as its mathematics allows."""


def first_losses(contender: str, case: models.Case, steps: int = 6) -> list[float]:
    convert, step = peers.prepare(contender, case)
    return [step(convert(batch)) for batch in case.batches()[:steps]]


@pytest.mark.parametrize("contender", ["jax", "ours"])
@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.name)
def test_contenders_compute_what_torch_does(contender, case):
    """Six steps: the later losses are right only if backward pass and optimizer are."""
    assert first_losses(contender, case) == pytest.approx(
        first_losses(peers.REFERENCE, case), rel=2e-6
    )


def test_losses_move():
    """The comparison above would pass for a contender that does not train otherwise."""
    case = models.lenet(batch=4)
    convert, step = peers.prepare(peers.REFERENCE, case)
    batch = convert(case.batches()[0])
    assert step(batch) > 1.001 * step(batch)


def test_every_case_is_the_same_twice():
    for case in SMALL:
        first, second = case.model().state_dict(), case.model().state_dict()
        assert all((first[k] == second[k]).all() for k in first)
        for a, b in zip(case.batches()[0], case.batches()[0], strict=True):
            assert (a == b).all()


def test_case_names_are_the_issues():
    assert list(models.CASES) == ["logreg-1", "logreg-64", "res_ffn", "lenet", "gpt"]


def test_spread():
    assert Spread.of([4.0]) == Spread(median=4.0, low=4.0, high=4.0, least=4.0, most=4.0)
    assert Spread.of([1.0, 2.0, 3.0, 4.0, 9.0]) == Spread(
        median=3.0, low=2.0, high=4.0, least=1.0, most=9.0
    )


RESULT = CaseResult(
    name="lenet",
    contenders=(
        ContenderResult(name="ours", steps=5, seconds=(0.001, 0.004, 0.002)),
        ContenderResult(name="eager", steps=7, seconds=(0.002, 0.002, 0.002)),
    ),
    failed=(("compile", "no C++ compiler"),),
)


def test_ratios_are_taken_round_by_round():
    assert RESULT.ratios() == {"eager": Spread(median=1.0, low=0.75, high=1.5, least=0.5, most=2.0)}
    without_ours = CaseResult(name="x", contenders=RESULT.contenders[1:])
    assert without_ours.ratios() == {}


def test_table_names_failures():
    text = table([RESULT])
    assert "lenet      ours          2.0000" in text
    assert "compile    failed: no C++ compiler" in text


def test_json_says_where_it_was_measured():
    found = json.loads(json.dumps(to_json([RESULT], threads=2, settings={"rounds": 3})))
    assert found["cases"]["lenet"]["contenders"]["ours"]["rounds_ms"] == [1.0, 4.0, 2.0]
    assert found["cases"]["lenet"]["ours_over_peer"]["eager"]["median"] == 1.0
    assert found["cases"]["lenet"]["failed"] == {"compile": "no C++ compiler"}
    assert set(found["environment"]["versions"]) == {"python", "torch", "jax", "jaxlib", "numpy"}
    assert found["environment"]["threads"] == 2


def test_differing_losses_are_refused():
    check_losses("lenet", {"eager": [1.0, 2.0], "jax": [1.0, 2.001]})
    with pytest.raises(LossesDiffer, match="lenet differ: eager") as caught:
        check_losses("lenet", {"eager": [1.0, 2.0], "jax": [1.0, 2.003]})
    assert caught.value.losses["jax"] == [1.0, 2.003]


def test_a_worker_that_fails_says_why():
    worker = Worker(case="lenet", contender="nobody", threads=1)
    try:
        with pytest.raises(WorkerFailed, match="nobody failed on lenet: KeyError: 'nobody'"):
            worker.steps(1)
    finally:
        worker.close()


def test_a_peer_that_fails_is_reported_and_left_out():
    result = run_case(
        "logreg-1", ["nobody"], rounds=1, round_seconds=0.01, warm_seconds=0.0, threads=1
    )
    assert result.contenders == () and dict(result.failed) == {"nobody": "KeyError: 'nobody'"}


@pytest.mark.parametrize("argv", [["run", "--rounds=0"], ["run", "--model=x"], []])
def test_wrong_arguments(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "error" in capsys.readouterr().err


def bench(tmp_path, *argv: str) -> dict:
    """Run the command as a process and return the JSON it writes."""
    path = tmp_path / "bench.json"
    quick = ("--rounds=2", "--round-seconds=0.02", "--warm-seconds=0.02", f"--json={path}")
    done = subprocess.run(
        [sys.executable, "-m", "bench", "run", *quick, *argv],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "ours/peer" in done.stdout
    return json.loads(path.read_text())["cases"]


def test_the_command(tmp_path):
    cases = bench(tmp_path, "--model", "logreg-1", "--contender", "ours", "eager", "jax")
    assert list(cases) == ["logreg-1"]
    assert list(cases["logreg-1"]["contenders"]) == ["ours", "eager", "jax"]
    assert cases["logreg-1"]["failed"] == {}
    for contender in cases["logreg-1"]["contenders"].values():
        assert len(contender["rounds_ms"]) == 2 and min(contender["rounds_ms"]) > 0


@pytest.mark.slow
def test_all_cases_against_all_peers(tmp_path):
    cases = bench(tmp_path)
    assert list(cases) == list(models.CASES)
    for case in cases.values():
        assert "ours" in case["contenders"] and case["failed"] == {}
