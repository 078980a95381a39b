"""A session that names a PEF parses it there: facts of it need no ``trace_graph``."""

from __future__ import annotations

import shutil

import pytest

import samba
from pef_schema.errors import PefError
from samba.errors import NotLoaded
from tests.api.covers import covers
from tests.samba.worlds import DROPOUT, INFERENCE, MLP

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


@covers("samba.SambaSession")
def test_a_new_session_answers_for_its_pef(pefs):
    session = samba.SambaSession(pefs(DROPOUT))
    types, argins, weights, rates, seeds = facts(session)
    assert types == {"FWD", "BCKWD", "OPT"}
    assert {"lr", "momentum", "weight_decay"} <= set(argins)
    assert weights == WEIGHTS
    assert rates == ["mlp__drop__dropout__p"] and len(seeds) == 1
    assert set(rates + seeds) <= set(argins)
    assert session.program is None and session.counters.traces == 0


@pytest.mark.parametrize("on", [samba.session, samba.SambaSession], ids=["instance", "class"])
def test_reset_parses_the_pef_that_it_is_given(pefs, on):
    on.reset(pefs(INFERENCE))
    assert facts(samba.session) == ({"FWD"}, [], WEIGHTS, [], [])
    on.reset(pefs(MLP))
    assert samba.session.get_section_types() == {"FWD", "BCKWD", "OPT"}
    on.reset()
    with pytest.raises(NotLoaded):
        samba.session.get_section_types()


@covers("samba.session.get_section_types", "samba.session.get_weight_names")
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
