"""The files of a compile: facts of a PEF that is named, and the log beside it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import sys
from pathlib import Path

import pytest

import samba
from pef_schema import read_info, read_pef
from pef_schema.errors import PefError
from samba.errors import NotLoaded
from tests.api.covers import covers
from tests.processes import finished
from tests.samba.refusals import compile_into
from tests.samba.worlds import DROPOUT, INFERENCE, MLP, named

WEIGHTS = [f"mlp__{layer}__{kind}" for layer in ("first", "second") for kind in ("weight", "bias")]


def facts(
    session: samba.SambaSession,
) -> tuple[set[str], list[str], list[str], list[str], list[str]]:
    return (
        session.get_section_types(),
        list(session.get_argin_names()),
        session.get_weight_names(),
        session.get_dropout_rate_argin_names(),
        session.get_dropout_seed_argin_names(),
    )


def test_reset_parses_the_pef_that_it_is_given(pefs):
    samba.session.reset(pefs(INFERENCE))
    assert facts(samba.session) == ({"FWD"}, [], WEIGHTS, [], [])
    assert samba.session.program is None and samba.session.counters.traces == 0
    samba.session.reset(pefs(MLP))
    assert samba.session.get_section_types() == {"FWD", "BCKWD", "OPT"}
    samba.session.reset()
    with pytest.raises(NotLoaded):
        samba.session.get_section_types()


@covers("samba.session.get_section_types", ".get_weight_names")
def test_the_same_facts_hold_when_it_is_loaded(pefs):
    samba.session.reset(pefs(DROPOUT))
    before = facts(samba.session)
    pefs.loaded(DROPOUT)
    assert facts(samba.session) == before


def test_what_is_parsed_is_the_file_of_that_moment(pefs, tmp_path):
    pef = tmp_path / "one.pef"
    shutil.copy(pefs(MLP), pef)
    samba.session.reset(str(pef))
    pef.unlink()
    assert samba.session.get_weight_names() == WEIGHTS


def test_a_compile_names_its_pef(pefs, tmp_path):
    samba.session.reset(pefs(DROPOUT))
    scene = INFERENCE.build()
    scene.compile(tmp_path)
    assert samba.session.get_section_types() == {"FWD"}


def test_parsing_is_an_event_of_the_profiler(pefs):
    samba.session.start_samba_profile()
    samba.SambaSession(pefs(MLP))
    samba.session.profiler.stop_profile()
    assert samba.session.profiler.names == ["SAMBA_SET_PEF"]


def test_a_pef_that_is_none_is_refused_where_it_is_named(tmp_path):
    missing, broken = tmp_path / "missing.pef", tmp_path / "broken.pef"
    broken.write_bytes(b"no program")
    for path in (missing, broken):
        with pytest.raises(PefError):
            samba.SambaSession(str(path))
        with pytest.raises(PefError):
            samba.session.reset(str(path))
        with pytest.raises(NotLoaded):
            samba.session.get_weight_names()


# -- PEF and log are of one program, however a compile ends ----------------------------


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
