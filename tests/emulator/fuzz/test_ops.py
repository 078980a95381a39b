"""Drawn calls of ops: what the harness says of them, and that no op aborts, hangs or is killed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch

from tests.emulator.fuzz import ops
from tests.emulator.fuzz.op_cases import NOT_DRAWN, arguments_of, draw
from tests.processes import finished

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
    names = ops.drawn_ops()
    assert len(names) + len(NOT_DRAWN) > 800
    for op in names:
        assert arguments_of(op) or op.endswith(("cat.default",)), op
        first, second = draw(op, 5), draw(op, 5)
        assert _same(first.args, second.args), op
        assert _same(list(first.kwargs.values()), list(second.kwargs.values())), op
    assert not _same(draw("aten.add.Tensor", 5).args, draw("aten.add.Tensor", 6).args)


def test_a_sample_of_ops_ends_well() -> None:
    found = list(ops.run_cases((op, at % 2) for at, op in enumerate(SAMPLE)))
    assert len(found) == len(SAMPLE)
    assert not [o.line for o in found if o.outcome in ops.DEFECTS]
    assert sum(o.outcome == "ran" for o in found) >= len(SAMPLE) / 2


_BAD_OPS = """
import os, sys
import jax, jax.numpy as jnp
from jax import lax
from emulator.ops.registry import load_ops, _OPS
import dataclasses

def put(name, lower):
    _OPS[name] = dataclasses.replace(load_ops()[name], lower=lower)

def hang(x):
    return lax.while_loop(lambda a: jnp.any(a < jnp.inf), jnp.sin, x * 0 + 1)

def kill(x):
    os.kill(os.getpid(), 9)

def abort(x):
    os.abort()

def hungry(x):
    # What a loop carries is in memory: XLA takes anything less into the sum.
    turns = 2 + (x.ravel()[0] > 0)
    large = jnp.zeros((9 << 25,), jnp.float32)  # 1.1 GiB
    return lax.fori_loop(0, turns, lambda i, a: a.at[i].set(1), large).sum()

def shape(x):
    return jnp.ones((7, 7))

def foreign(x):
    raise KeyError("x")

load_ops()
for name, lower in (("exp", hang), ("sin", kill), ("cos", abort), ("tan", hungry),
                    ("sinh", shape), ("cosh", foreign)):
    put(f"aten.{name}.default", lower)
from tests.emulator.fuzz.op_worker import main
main()
"""


def _found(
    wanted: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """Outcomes of ops whose lowerings are bad ones, by op."""
    script = tmp_path / "worker.py"
    script.write_text(_BAD_OPS)
    monkeypatch.setattr(ops, "WORKER", (str(script),))
    monkeypatch.setattr(ops, "DEADLINE_S", 5.0)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    cases = [(op, next(s for s in range(999) if _ordinary(op, s))) for op in wanted]
    found = list(ops.run_cases(cases))
    for (op, seed), outcome in zip(cases, found, strict=True):
        assert f"--op {op} --seed {seed}" in outcome.line
    return {o.op: o.outcome for o in found}


def _ordinary(op: str, seed: int) -> bool:
    x = draw(op, seed).args[0]
    return x.dtype == torch.float32 and 0 < x.numel() < 50 and seed % 2 == 0


def test_bad_lowerings_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {
        "aten.cosh.default": "foreign",
        "aten.sinh.default": "shape",
        "aten.cos.default": "abort",
    }
    assert _found(wanted, tmp_path, monkeypatch) == wanted


@pytest.mark.slow
def test_worse_lowerings_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {
        "aten.exp.default": "hang",
        "aten.tan.default": "memory",
        "aten.sin.default": "abort",
    }
    assert _found(wanted, tmp_path, monkeypatch) == wanted


@pytest.mark.slow
def test_the_command_line_counts_and_ends_with_0(tmp_path: Path) -> None:
    log = tmp_path / "all.jsonl"
    command = [sys.executable, "-m", "tests.emulator.fuzz.ops", "--op", "aten.add.Tensor"]
    done = finished(
        [*command, "--cases", "2", "--seed", "3", "--all", str(log)],
        env={**os.environ},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 cases of 1 ops: ")
    assert [json.loads(line)["seed"] for line in log.read_text().splitlines()] == [3, 4]


@pytest.mark.slow
def test_every_op_ends_well() -> None:
    names = ops.drawn_ops()
    found = ops.run_cases((op, seed) for seed in range(1000, 1003) for op in names)
    assert not [o.line for o in found if o.outcome in ops.DEFECTS]
