"""Damaged files with a right digest are read or refused: nothing foreign, slow or large."""

from __future__ import annotations

from pathlib import Path

import pytest

from pef_schema import encode, read_pef
from pef_schema.envelope import HEADER_SIZE
from pef_schema.program import OptimizerKind, Role, SectionKind
from tests.fuzz.campaign import Campaign
from tests.pef_schema.forge import metadata_of, seal
from tests.pef_schema.fuzz.cases import SHARES, Case
from tests.pef_schema.fuzz.make_seeds import MAKERS, make
from tests.pef_schema.fuzz.seeds import FOLDER, load_seeds


def test_readings(tmp_path: Path) -> None:
    """And some of what is accepted is kept, and changed further the next time."""
    campaign = Campaign(target="reading", folder=tmp_path)
    finds = campaign.go(600, workers=1)
    assert finds == [], "\n".join([campaign.table(), *finds])
    assert campaign.counts.total() == 600
    assert {kind for kind, _ in campaign.counts} == set(SHARES)
    accepted = sum(n for (_, label), n in campaign.counts.items() if label == "accepted")
    assert 60 < accepted < 540
    kept = sorted((tmp_path / "corpus" / "reading").glob("*.pef"))
    names = Campaign(target="reading", folder=tmp_path).names(600, 1)
    bases = {Case.parse(name).base for name in names}
    assert bases == {"", *map(str, kept)}
    assert len(bases) > 5


def test_seeds_hold_all_that_a_program_can() -> None:
    """What no seed holds, no change of a seed tries."""
    programs = {seed.name: seed.program for seed in load_seeds() if not seed.golden}
    assert len(programs) >= 13
    assert all(seed.metadata for seed in load_seeds())
    sections = [section for program in programs.values() for section in program.sections]
    optimizers = [o for program in programs.values() for o in program.optimizers]
    regions = [region for program in programs.values() for region in program.regions]
    graphs = [graph for program in programs.values() for graph in program.graphs]
    ops = {node.op for graph in graphs for node in graph.nodes}
    assert {kind for section in sections for kind in section.kinds} == set(SectionKind)
    assert {optimizer.kind for optimizer in optimizers} == set(OptimizerKind)
    assert {region.role for region in regions} == set(Role)
    assert any(graph.gradients for graph in graphs)
    assert any(program.segments for program in programs.values())
    assert any(len(program.graphs) > 1 for program in programs.values())
    assert any(len(section.steps) == 2 for section in sections)
    assert any(section.twin != i for p in programs.values() for i, section in enumerate(p.sections))
    assert any(step.max_norm for section in sections for step in section.steps)
    assert any(step.accumulates for section in sections for step in section.steps)
    assert {("amsgrad", 1.0), ("nesterov", 1.0)} <= {pair for o in optimizers for pair in o.options}
    assert "aten._native_batch_norm_legit_functional.default" in ops
    assert {"aten.conv2d.default", "aten.lstm.input", "aten.native_dropout.default"} <= ops
    assert {"samba.cast_bf16.input", "samba.cast_bf16.result"} <= ops
    assert not programs["bare"].graphs


def test_every_seed_is_small_and_written_as_it_is() -> None:
    """The harness reads and changes them a hundred thousand times."""
    for path in FOLDER.glob("*.pef"):
        assert encode(read_pef(path)) == path.read_bytes(), path.name
        assert path.stat().st_size <= 16 * 1024, path.name


def test_digest_is_right_after_a_change() -> None:
    """Or every case would end at the same check."""
    (mlp,) = [seed for seed in load_seeds() if seed.name == "mlp"]
    pef = seal(mlp.metadata, mlp.data, writer=1)
    assert pef == encode(mlp.program)
    assert metadata_of(pef) == pef[HEADER_SIZE:]


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_seeds_are_what_the_compiler_makes(name: str) -> None:
    """``python -m tests.pef_schema.fuzz.make_seeds`` after a change of the compiler."""
    assert sorted(path.stem for path in FOLDER.glob("*.pef")) == sorted(MAKERS)
    assert make(name) == (FOLDER / f"{name}.pef").read_bytes()
