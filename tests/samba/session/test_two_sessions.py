"""A second session in a process: it has a program of its own and leaves the first as it is."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import samba
from samba.errors import NotLoaded
from samba.session import SambaSession
from samba.support.tracing import tracing
from samba.tensor.device_memory import visible_memory


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the PEFs of the layers are, each compiled by the first test that loads it."""
    return tmp_path_factory.mktemp("sessions")


@pytest.fixture
def second():
    session = SambaSession()
    yield session
    session.reset()


def loaded(session, folder, name, value):
    """A linear layer of one weight, loaded by a session."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, value)
    samba.from_torch_model_(model, parent_module_prefix=name)
    x = samba.ones(2, 1, name="x")
    config = {"pef_name": name, "output_folder": str(folder)}
    pef = folder / name / f"{name}.pef"
    if not pef.exists():
        session.compile(model, (x,), inference=True, config_dict=config)
    keywords = {"loss_indices": None, "transfer_device": True, "config": config}
    session.load(model, (x,), None, pef=str(pef), **keywords)
    return model, x


def first_row(session, model, x):
    (out,) = session.run((x,), model.output_tensors)
    return out[0].item()


def test_making_a_second_session_changes_nothing(folder):
    model, x = loaded(samba.session, folder, "one", 3.0)
    counters, buffers = samba.session.counters, samba.session.buffer_dict
    assert x.fast_access
    SambaSession()
    assert x.fast_access
    assert samba.session.counters == counters
    assert samba.session.buffer_dict is buffers
    assert model.weight.sn_data.item() == 3.0


def test_each_session_runs_its_own_program(folder, second):
    one, x = loaded(samba.session, folder, "one", 3.0)
    two, y = loaded(second, folder, "two", 5.0)
    assert first_row(samba.session, one, x) == 3.0
    assert first_row(second, two, y) == 5.0
    assert (samba.session.program.name, second.program.name) == ("linear", "linear")
    assert samba.session.program is not second.program
    assert (samba.session.counters.runs, second.counters.runs) == (1, 1)
    assert samba.session.pef_path != second.pef_path


def test_tensors_see_the_program_loaded_last_and_then_the_other_again(folder, second):
    one, _ = loaded(samba.session, folder, "one", 3.0)
    two, _ = loaded(second, folder, "two", 5.0)
    assert two.weight.sn_data.item() == 5.0
    second.reset()
    assert one.weight.sn_data.item() == 3.0
    with pytest.raises(NotLoaded):
        second.run()


def test_a_reset_leaves_the_other_session_alone(folder, second):
    loaded(samba.session, folder, "one", 3.0)
    two, y = loaded(second, folder, "two", 5.0)
    samba.session.reset()
    assert two.weight.sn_data.item() == 5.0
    assert first_row(second, two, y) == 5.0


def test_modes_are_of_one_session(second):
    second.enable_pinned_memory()
    key = second.create_dynamic_dim("seq", 1, 4)
    assert second.use_pinned_memory() and key in second.dynamic_dims
    assert not samba.session.use_pinned_memory()
    assert samba.session.dynamic_dims == {}


def test_a_reset_leaves_buffers_and_marks_of_the_process(folder, second):
    _, x = loaded(samba.session, folder, "one", 3.0)
    samba.from_torch_model_(torch.nn.BatchNorm1d(2))
    names = set(samba.session.buffer_dict)
    loaded(second, folder, "two", 5.0)
    second.reset()
    assert x.fast_access
    assert set(samba.session.buffer_dict) >= names and names
    assert second.buffer_dict == {}


def test_a_reset_frees_the_device_at_once(folder, second):
    loaded(second, folder, "two", 5.0)
    device = weakref.ref(second.need_loaded("test").device)
    gc.disable()
    try:
        second.reset()
        assert device() is None
    finally:
        gc.enable()


def test_a_session_that_is_dropped_frees_its_device(folder):
    session = SambaSession()
    loaded(session, folder, "two", 5.0)
    device = weakref.ref(session.need_loaded("test").device)
    del session
    gc.collect()
    assert device() is None
    assert visible_memory() is None


def test_a_runtime_profile_outlives_a_reset(tmp_path, second, monkeypatch):
    monkeypatch.setenv("ENABLE_RUNTIME_PERF", "SUMMARY")
    second.start_runtime_profile(timer_enabled=False)
    second.reset()
    second.end_runtime_profile(tmp_path / "profile.log")
    assert "runtime profile (summary)" in (tmp_path / "profile.log").read_text()


def test_a_trace_within_a_trace_ends_alone():
    with tracing():
        with tracing():
            pass
        assert samba.session.tracing
    assert not samba.session.tracing
