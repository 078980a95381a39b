"""``python -m bench tune`` writes what it has measured, beside what was measured before."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import __main__ as bench
from bench.kernels.tune import merged, of_category
from emulator.kernels.rules import Measured, Rule, parse_rule

PRODUCT, CONVOLUTION = "product float32 nn", "convolution 2d forward float32 3"


def measured(*sizes: int, time: float) -> Measured:
    return Measured(sizes=sizes, times={"xla": time})


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Rule]:
    """What the next measurements will say, in their order."""
    waiting: list[Rule] = []
    monkeypatch.setattr(bench, "tune", lambda **_: waiting.pop(0))
    return waiting


def test_some_kinds_are_added_to_the_file_that_is_written(
    tmp_path: Path, answers: list[Rule]
) -> None:
    """A rule is made kind by kind, into a file of one's own."""
    out = tmp_path / "mine.json"
    answers += [
        Rule(name="mine", points={CONVOLUTION: (measured(1, 2, time=3),)}),
        Rule(name="mine", points={PRODUCT: (measured(4, 5, time=6),)}),
    ]
    for kind in ("convolution", "product"):
        assert bench.main(["tune", f"--only={kind}", f"--out={out}"]) == 0
    points = parse_rule("mine", out.read_text()).points
    assert {category: of[0].times["xla"] for category, of in points.items()} == {
        CONVOLUTION: 3,
        PRODUCT: 6,
    }


def test_all_kinds_take_the_place_of_the_file(tmp_path: Path, answers: list[Rule]) -> None:
    out = tmp_path / "mine.json"
    answers += [
        Rule(name="mine", points={CONVOLUTION: (measured(1, 2, time=3),)}),
        Rule(name="mine", points={PRODUCT: (measured(4, 5, time=6),)}),
    ]
    for _ in range(2):
        assert bench.main(["tune", f"--out={out}"]) == 0
    assert list(parse_rule("mine", out.read_text()).points) == [PRODUCT]


def test_the_same_sizes_are_replaced_and_others_stay() -> None:
    old = Rule(name="old", points={PRODUCT: (measured(1, time=1), measured(2, time=2))})
    new = Rule(name="new", points={PRODUCT: (measured(2, time=5),)})
    found = merged(old, new)
    assert found.name == "new"
    assert [(p.sizes, p.times["xla"]) for p in found.points[PRODUCT]] == [((1,), 1), ((2,), 5)]


def test_kinds_are_chosen_by_a_part_of_their_name() -> None:
    found = list(of_category("weight gradient float32 3 depthwise"))
    assert found
    assert all("weight gradient float32 3 depthwise" in problem.category for problem in found)
