"""A damaged program that is accepted runs, or is refused with a documented error."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.fuzz.campaign import Campaign
from tests.fuzz.pool import Worker
from tests.pef_schema.fuzz.seeds import FOLDER, load_seeds


def test_runs(tmp_path: Path) -> None:
    campaign = Campaign(target="run", folder=tmp_path)
    finds = campaign.go(12, workers=1)
    assert finds == [], "\n".join([campaign.table(), *finds])
    assert campaign.counts.total() == 12
    assert sum(n for (_, label), n in campaign.counts.items() if label == "ran") > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", [seed.name for seed in load_seeds() if not seed.golden])
def test_every_seed_runs(name: str) -> None:
    """Undamaged ones: or a change of one would be refused for what the seed lacks."""
    with closing(Worker("run")) as worker:
        (result,) = worker.tries([f"rows:0@{FOLDER / name}.pef+-"])
    assert (result.outcome.label, result.outcome.text[:1]) == ("ran", "["), result.outcome
