"""A run that was cut off goes on from its checkpoint as if nothing had happened."""

from __future__ import annotations

import pytest
import torch

from tests.samba.distributed.processes import all_well, run_replicas, worker
from tests.samba.distributed.worlds import compile_to, world


@pytest.mark.slow
def test_restart_is_exact(tmp_path):
    pef = compile_to(tmp_path, world("adamw"))
    ends = {}
    for name in ("whole", "cut"):
        folder = tmp_path / name
        folder.mkdir()
        for attempt in range(2 if name == "cut" else 1):
            ended = run_replicas(
                2,
                worker("restart"),
                pef,
                str(folder),
                "7" if name == "cut" and attempt == 0 else "-1",
                seconds=120,
                env={"CCL_TIMEOUT": "20"},
            )
            if name == "cut" and attempt == 0:
                assert [end.code for end in ended] == [1, -9], ended[0].err
            else:
                all_well(ended)
        ends[name] = [torch.load(folder / f"end{rank}.pt", weights_only=True) for rank in (0, 1)]
    expected = ends["whole"][0]
    for found in [ends["whole"][1], *ends["cut"]]:
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[path], expected[path]) for path in expected)
