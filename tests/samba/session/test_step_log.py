"""A file of rows that cannot be continued, or not be written, is refused before anything runs."""

from __future__ import annotations

import os

import pytest

import samba
from samba.errors import ArgumentError
from samba.profiler import PROFILER
from samba.session.step_log import BadStepLog


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"epoch 1: 0.5\n", "its first line was not written"),
        (b'{"format": "samba.steps"}\n\x00\x00\n', "one of its last lines was not written"),
        (b'{"format": "samba.steps"}\n{"kind": "train", "step": "x"}\n', "one of its last lines"),
        (b"{" * 100_000, "its first line was not written"),
    ],
    ids=["another", "damaged", "other-step", "endless"],
)
def test_a_file_of_something_else_is_left_alone(tmp_path, text, problem):
    path = tmp_path / "log" / "steps.jsonl"
    path.parent.mkdir()
    path.write_bytes(text)
    with pytest.raises(BadStepLog, match=problem) as caught:
        samba.session.follow(tmp_path / "log", tensorboard=False)
    assert caught.value.path == str(path) and path.read_bytes() == text
    assert "Move it away" in str(caught.value) and "\n" not in str(caught.value)
    assert PROFILER.follower is None


def test_a_folder_that_cannot_be_written_is_told_at_once(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BadStepLog, match="it cannot be written: there is a file in its folder's"):
        samba.session.follow(tmp_path / "file", tensorboard=False)
    with pytest.raises(BadStepLog, match="it cannot be written: Not a directory"):
        samba.session.follow(tmp_path / "file" / "log", tensorboard=False)
    (tmp_path / "log" / "steps.jsonl").mkdir(parents=True)
    with pytest.raises(BadStepLog, match="it cannot be written: Is a directory"):
        samba.session.follow(tmp_path / "log", tensorboard=False)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "pipe").mkdir()
    (tmp_path / "pipe" / "steps.jsonl").symlink_to(tmp_path / "fifo")
    with pytest.raises(BadStepLog, match="it is not a file"):
        samba.session.follow(tmp_path / "pipe", tensorboard=False)
    with pytest.raises(ArgumentError, match=r"session\.follow\(step=\.\.\.\)"):
        samba.session.follow(tmp_path / "other", step=-1)
