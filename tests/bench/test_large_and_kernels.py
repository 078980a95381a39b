"""What `bench kernels` prints, and the benches of large models and of several processes."""

from __future__ import annotations

from pathlib import Path

import pytest

import samba
from bench import __main__ as bench, models, targets
from bench.errors import LossesDiffer, StatesDiffer
from bench.kernel_problems import kinds, title
from bench.measurement import OURS, Results
from bench.peers import DDP, REPLICA
from bench.peers.torch_step import to_torch
from bench.suites import ddp
from emulator.memory import allocator
from pef_schema import read_pef
from tests.bench.shortest import settings


def test_kernels_are_timed_beside_torchs(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        bench.main(["kernels", "--rounds=1", "--round-seconds=0.001", "--only=1d", "--most=2"]) == 0
    )
    first, *rows = capsys.readouterr().out.splitlines()
    assert first.endswith("; GFLOP/s")
    for row in rows:
        ways = dict(part.rsplit(" ", 1) for part in row.rpartition(": ")[2].split(", "))
        assert {"xla", "torch"} <= set(ways)
        assert all(float(rate) > 0 for rate in ways.values())
    assert [row.partition(" groups")[0] for row in rows] == [
        "convolution 1d forward 8x1024x1x32 kernel 2 stride 1 dilation 1",
        "convolution 1d input gradient 8x1024x1x32 kernel 2 stride 1 dilation 1",
    ]


def test_kinds_are_chosen_by_a_part_of_their_title() -> None:
    found = kinds("2d weight gradient")
    assert found
    assert all("2d weight gradient" in title(problem) for problem in found)
    assert not kinds("4d")


def test_a_recurrent_layer_is_timed_with_its_gradients(capsys: pytest.CaptureFixture[str]) -> None:
    only = "--only=recurrence float32 lstm 20x2"
    assert bench.main(["kernels", "--rounds=1", "--round-seconds=0.001", only]) == 0
    _, row = capsys.readouterr().out.splitlines()
    layer, _, rates = row.partition(": ")
    assert layer == "recurrence float32 lstm 20x2x32x64"
    ways = dict(part.rsplit(" ", 1) for part in rates.split(", "))
    assert {"xla", "torch"} <= set(ways)
    assert all(float(rate) > 0 for rate in ways.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", models.TIMED)
def test_bench_knows_which_cases_are_large(name: str, tmp_path: Path) -> None:
    case = models.TIMED[name]
    model = case.model()
    samba.from_torch_model_(model)
    inputs = [
        samba.from_torch_tensor(t, name=n)
        for t, n in zip(to_torch(case.batches()[0]), case.input_names, strict=True)
    ]
    optimizer = samba.optim.AdamW(model.parameters())
    config = {"output_folder": str(tmp_path), "optim_level": case.optim_level}
    pef = samba.session.compile(model, inputs, optimizer, name=case.family, config_dict=config)
    assert allocator.is_large(read_pef(Path(pef))) is case.large


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_two_replicas_over_a_slow_link(tmp_path, monkeypatch):
    monkeypatch.setenv("BAGUA_DEFAULT_BUCKET_SIZE", "2000")
    # So slow that sleeping, which needs no core, is nearly all: what is hidden then must show
    # whatever else the machine does.
    monkeypatch.setattr(ddp, "LATENCY", 0.05)
    found = Results()
    ddp.one_overlap("chain_o0", settings(tmp_path, threads=2), found)
    medians = {m.contender: m.median for m in found.select("overlap", what="step")}
    assert set(medians) == {ddp.FREE, *ddp.MODES}
    link = found.get("overlap", "chain_o0", ddp.LINK, "reductions")
    assert link is not None and link.median > 10 * 0.05
    for mode in ddp.MODES:
        assert medians[mode] > link.median, "reductions come one after the other"


class Answering:
    """Replicas of which one is wrong in one mode."""

    def __init__(self, wrong: str) -> None:
        self.wrong = wrong

    def ask(self, what, mode):
        return [{"state": "0"}, {"state": "1" if mode == self.wrong else "0"}]


def test_replicas_that_differ_are_refused():
    ddp.check_states("gpt", Answering(""))
    with pytest.raises(StatesDiffer, match="inorder, rank 1: 1; optimal, rank 0: 0"):
        ddp.check_states("gpt", Answering("inorder"))


def test_sides_that_differ_are_refused():
    ddp.check("gpt", {REPLICA: [1.0, 2.0], DDP: [1.0005, 2.001]})
    for wrong in (2.01, float("nan")):
        with pytest.raises(LossesDiffer):
            ddp.check("gpt", {REPLICA: [1.0, wrong], DDP: [1.0, 2.0]})


def rows(found: Results) -> dict[str, bool | None]:
    return {row.what: row.met for row in targets.rows(found) if row.measured}


def test_goals():
    found = Results()
    for mode, seconds in (("normal", 1.2), ("inorder", 1.0), ("optimal", 1.01)):
        found.add("overlap", "gpt", mode, "step", "s", [seconds] * 3)
    found.add("alone", "gpt", OURS, "step", "s", [1.0] * 3)
    found.add("alone", "gpt", REPLICA, "step", "s", [1.03] * 3)
    found.add("ddp", "gpt", DDP, "step", "s", [1.0] * 3)
    found.add("ddp", "gpt", REPLICA, "step", "s", [1.04] * 3)
    assert rows(found) == {
        "step time over a slow link, inorder / normal: gpt": True,
        "step time over a slow link, optimal / inorder: gpt": True,
        "step time of one replica, data parallel / not: gpt": False,
        "step time of two replicas / DistributedDataParallel's: gpt": True,
    }
