"""Methods that the page of SambaSession calls static or class methods: on the class as well."""

from __future__ import annotations

import inspect

import pytest
import torch

import samba
from samba import utils
from samba.errors import ArgumentError, NotLoaded
from tests.samba.session.loading import load


@pytest.fixture
def model(tmp_path):
    made = samba.from_torch_model_(torch.nn.BatchNorm1d(3))
    x = samba.ones(4, 3, name="x")
    load(made, x, tmp_path)
    return made


def test_transfers_work_on_the_class(model):
    session = samba.SambaSession
    with torch.no_grad():
        model.weight.fill_(3.0)
        model.running_mean.fill_(5.0)
    session.to_rdu(model)
    assert (model.weight.sn_data == 3.0).all()
    with torch.no_grad():
        model.weight.zero_()
        model.running_mean.zero_()
    session.sync_buffers_to_cpu(model)
    assert (model.running_mean == 5.0).all() and (model.weight == 0.0).all()
    session.to_cpu(model)
    assert (model.weight == 3.0).all()
    model.running_mean.fill_(7.0)
    session.sync_buffers_to_rdu(model)
    model.running_mean.zero_()
    session.to_cpu_(model)
    assert (model.running_mean == 7.0).all()


def test_reset_on_the_class_closes_the_session_of_the_process(model):
    samba.SambaSession.reset()
    with pytest.raises(NotLoaded):
        samba.session.run()


@pytest.mark.parametrize("name", ["reset", "to_cpu", "to_cpu_", "to_rdu"])
def test_signatures_are_those_of_the_page(name):
    on_class = inspect.signature(getattr(samba.SambaSession, name))
    assert on_class == inspect.signature(getattr(samba.session, name))
    assert "self" not in on_class.parameters


def test_another_session_is_meant_by_itself(model):
    second = samba.SambaSession()
    with pytest.raises(NotLoaded):
        second.to_cpu(model)
    second.reset()
    samba.session.to_cpu(model)


def test_trace_graph_after_compile_takes_its_pef(tmp_path):
    layer = samba.from_torch_model_(torch.nn.Linear(2, 1))
    x = samba.ones(3, 2, name="x")
    config = {"output_folder": str(tmp_path), "pef_name": "own"}
    pef = samba.session.compile(layer, x, inference=True, config_dict=config)
    outputs = utils.trace_graph(layer, x)
    assert samba.session.pef_path == pef
    assert torch.equal(samba.session.run(x, outputs)[0].torch(), layer(x.torch()).detach())
    samba.session.reset()
    with pytest.raises(ArgumentError, match="no path"):
        utils.trace_graph(layer, x)
