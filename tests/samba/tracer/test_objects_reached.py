"""Objects, containers and tables that ``forward`` reaches: looked at, or left alone."""

from __future__ import annotations

import random
from collections import OrderedDict

import torch

import samba
from tests.samba.tracer.layers import Layer, assert_as_torch, compiled


class Dotted(dict):
    """Raises KeyError where an attribute is missing, except the one that doctest asks for."""

    def __getattr__(self, name):
        if name == "__wrapped__":
            raise AttributeError(name)
        return self[name]


CONFIG = Dotted(scale=2.0)


class Configured(Layer):
    config = Dotted(shift=1.0)

    def forward(self, x):
        return self.lin(x) * CONFIG.scale + self.config.shift


def test_objects_that_raise_where_an_attribute_is_missing_are_looked_at(tmp_path):
    model = Configured()
    assert_as_torch(model, compiled(model, tmp_path))


class Chained:
    """One of many objects, each held by the one before."""

    def __init__(self, following: Chained | None) -> None:
        self.following = following


def test_a_long_chain_and_a_generator_without_a_state_are_no_hindrance(tmp_path):
    model = Layer()
    model.system, model.chain = random.SystemRandom(), None
    for _ in range(2000):
        model.chain = Chained(model.chain)
    pef = compiled(model, tmp_path)
    assert_as_torch(model, pef)


class Makes(OrderedDict):
    """As transformers' table of activations: reading an entry makes an object."""

    def __getitem__(self, key):
        raise AssertionError("a trace reads no entry that forward does not read")


MADE = Makes(relu=torch.nn.ReLU)


class LooksUp(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.tables = [MADE]

    def forward(self, x):
        return self.lin(x) if "relu" in MADE else x


def test_a_container_that_runs_code_when_it_is_read_is_left_alone(tmp_path):
    assert compiled(LooksUp(), tmp_path)


class Registers(Layer):
    """Keeps a table for the next call, and gives the session a tensor under a name."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("angles", torch.arange(3.0), persistent=False)
        self.tables = {}

    def forward(self, x):
        if "cos" not in self.tables:
            self.tables["cos"] = self.angles.cos()
        table = self.tables["cos"]
        if not samba.session.is_valid_aux_tensor_name("table"):
            raise ValueError("the name is taken")
        samba.session.add_aux_tensor(table, "table")
        return self.lin(x) * table


def test_what_forward_registers_is_registered_once(tmp_path):
    """A cache is traced twice, to see that it changes nothing."""
    assert compiled(Registers(), tmp_path)


class Store:
    """A cache that every model of a process shares."""

    def __init__(self) -> None:
        self.tables = {}


STORE = Store()


class Shares(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("angles", torch.arange(3.0), persistent=False)

    def forward(self, x):
        if "cos" not in STORE.tables:
            STORE.tables["cos"] = (self.angles.cos(), self.angles.sin())
        cos, sin = STORE.tables["cos"]
        return self.lin(x) * cos + sin


def test_a_table_that_lies_outside_of_the_model_is_a_constant(tmp_path):
    STORE.tables.clear()
    assert compiled(Shares(), tmp_path)
