"""PEF and log are of one program, also where ``compile`` is cut off while it writes them."""

from __future__ import annotations

import os
import re
import signal
import stat
import sys
from pathlib import Path

import pytest

from pef_schema import PefError, read_info, read_pef
from tests.processes import finished
from tests.samba.refusals import compile_into
from tests.samba.worlds import MLP, named


def sections_of(pef):
    """How many sections the PEF has, and how many the log beside it speaks of."""
    found = re.search(r"(\d+) sections of \d+ structures", Path(f"{pef}.log").read_text())
    return len(read_pef(pef).sections), int(found[1])


def test_a_folder_that_cannot_be_flushed(tmp_path, monkeypatch):
    """PEF and log are new, both of them, and the error says that they are in place."""
    model, inputs = MLP.build().model, named(MLP.inputs())
    pef = compile_into(tmp_path, model, inputs)
    assert sections_of(pef) == (2, 2)
    real = os.fsync

    def refuse(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(5, "Input/output error")
        real(descriptor)

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(PefError, match="the new file is in place"):
        compile_into(tmp_path, MLP.build().model, inputs, config={"optim_level": "o0"})
    assert sections_of(pef) == (8, 8)
    assert read_info(pef).digest in Path(f"{pef}.log").read_text()


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.samba.refusals import compile_into
from tests.samba.worlds import MLP, named

folder, level, left = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
real = os.replace

def replace(source, target):
    global left
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    real(source, target)

os.replace = replace
compile_into(folder, MLP.build().model, named(MLP.inputs()), config={"optim_level": level})
"""


@pytest.mark.slow
@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_process_killed_while_it_renames(tmp_path, renames):
    """Beside the PEF there is no log but its own; the next compile brings one back."""
    model, inputs = MLP.build().model, named(MLP.inputs())
    pef = compile_into(tmp_path, model, inputs)
    done = finished(
        [sys.executable, "-c", KILLED, str(tmp_path), "o0", str(renames)],
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    if os.path.exists(f"{pef}.log"):
        assert sections_of(pef) == (2, 2)
    else:
        assert renames
    pef = compile_into(tmp_path, MLP.build().model, inputs, config={"optim_level": "o0"})
    assert sections_of(pef) == (8, 8)
    assert sorted(os.listdir(os.path.dirname(pef))) == ["mlp.pef", "mlp.pef.log"]
