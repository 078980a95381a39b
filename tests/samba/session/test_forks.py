"""Processes that are forked while a device is open: told at once, quiet while they ask nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.samba.session import fork_driver
from tests.warm import finished

REFUSED = (
    "run",
    "run part",
    "evaluate",
    "evaluate other",
    "evaluator",
    "to_cpu",
    "to_rdu",
    "to_device",
    "sn_data",
    "set sn_data",
    "sn_grad",
    "get_tensors",
    "synchronize",
    "load",
    "load another",
    "open",
    "device run",
    "device read",
    "device plan",
)


def drive(folder: Path, *which: str) -> tuple[dict[str, Any], str]:
    """What the driver saw, and what it wrote beside."""
    done = finished([sys.executable, fork_driver.__file__, str(folder), *which], seconds=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.fixture(scope="module")
def driven(tmp_path_factory):
    return drive(tmp_path_factory.mktemp("forks"))


@pytest.mark.parametrize("name", REFUSED)
def test_a_child_that_asks_for_the_device_is_told(driven, name):
    found, _ = driven
    kind, text = found[name]["error"]
    assert (found[name]["status"], kind) == (3, "ForkedProcess"), found[name]
    assert "was forked from process" in text
    assert 'multiprocessing.get_context("spawn")' in text


def test_a_child_ends_while_a_run_is_under_way_in_its_parent(driven):
    """It ends as the interpreter does, without a crash."""
    found, _ = driven
    assert found["nothing"] == {"status": 3, "error": ["", ""]}


def test_a_child_that_was_told_ends(driven):
    found, _ = driven
    assert found["run and exit"]["status"] == 3
    assert found["run and exit"]["error"][0] == "ForkedProcess"


def test_locks_that_other_threads_hold_do_not_reach_the_child(driven):
    found, _ = driven
    assert found["held elsewhere"]["status"] == 3
    assert found["held elsewhere"]["error"][0] == "ForkedProcess"


def test_workers_of_a_loader_are_quiet(driven):
    """Warnings are errors in the driver; workers make SambaTensors."""
    found, written = driven
    assert found["loader"] is True
    assert "Warning" not in written


@pytest.mark.slow
def test_children_that_need_no_device_work_and_end(tmp_path):
    """Forked ones use the host and the compiler; one that is spawned has a device of its own."""
    found, _ = drive(tmp_path, "slow")
    assert found.pop("spawned") == "ran"
    for name in ("reset", "host", "compile"):
        assert found[name] == {"status": 3, "error": ["", ""]}, name
