"""What a session knows of a PEF as soon as it has its path."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import pytest

import samba
from tests.api.covers import covers
from tests.samba.worlds import DROPOUT, MLP, Scene

WEIGHTS = ["mlp__first__weight", "mlp__first__bias", "mlp__second__weight", "mlp__second__bias"]


def assert_knows(session: samba.SambaSession) -> None:
    assert set(session.get_section_types()) == {"FWD", "BCKWD", "OPT"}
    assert list(session.get_weight_names()) == WEIGHTS
    assert {"lr", "momentum", "weight_decay"} <= set(session.get_argin_names())
    assert list(session.get_dropout_rate_argin_names()) == ["mlp__drop__dropout__p"]
    assert list(session.get_dropout_seed_argin_names()) == ["mlp__seed"]


@covers("samba.SambaSession(pef_path)")
def test_the_pef_is_parsed_when_a_session_is_made(pefs):
    assert_knows(samba.SambaSession(pef_path=pefs(DROPOUT)))
    with pytest.raises(samba.SambaError):  # nothing is provided, so nothing is loaded
        samba.SambaSession().get_section_types()


@covers("samba.session.reset(pef_path)")
@pytest.mark.parametrize("on", ["class", "instance"])
def test_a_reset_with_a_path_parses_that_pef(pefs, on):
    pefs.loaded(MLP)
    (samba.SambaSession if on == "class" else samba.session).reset(pef_path=pefs(DROPOUT))
    assert_knows(samba.session)
    with pytest.raises(samba.SambaError, match="nothing is on the device"):
        samba.session.run()
    scene: Scene = pefs.scene(DROPOUT)
    scene.trace(pef="")
    scene.host.eval()
    scene.run(train=False)
    scene.host_step()
    scene.assert_follows()


@covers("samba.session.get_argin_names")
def test_argin_names_are_an_ordered_set(pefs):
    pefs.loaded(DROPOUT)
    names = samba.session.get_argin_names()
    assert type(names).__name__ == "OrderedSet" and isinstance(names, AbstractSet)
    assert list(names) == ["mlp__drop__dropout__p", "mlp__seed", "lr", "momentum", "weight_decay"]
    assert "lr" in names and names & {"lr", "x"} == {"lr"}
