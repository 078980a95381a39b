"""What ``forward`` changes beside buffers is refused where torch computes something else then."""

from __future__ import annotations

import array
import collections
import contextvars
import itertools
import random

import numpy as np
import pytest
import torch
from torch import nn

import samba
from samba import utils
from samba.tracer.changed_state import ChangedAttributes, DrawnNumbers, MutatedConstant
from samba.tracer.snapshot import Snapshot
from tests.samba.refusals import line_of
from tests.samba.tracer.layers import Layer, assert_as_torch, compiled, given

CALLS = {"n": 0}
TURN = 1


class Steps(Layer):
    steps = 0

    def forward(self, x):
        self.steps += 1  # changes
        return self.lin(x) * self.steps


class Entries(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[int] = []
        self.counts = collections.Counter()
        self.turns = collections.deque([1, 2, 3], maxlen=3)

    def forward(self, x):
        self.log.append(len(self.log))
        self.counts["calls"] += 1
        self.turns.append(self.turns[0])
        return self.lin(x) * self.turns[0] + len(self.log)


class Settings:
    def __init__(self) -> None:
        self.scale = 1.0


class OfAnObject(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.settings = Settings()

    def forward(self, x):
        self.settings.scale *= 0.5
        return self.lin(x) * self.settings.scale


class OfAGlobal(Layer):
    def forward(self, x):
        global TURN
        TURN = -TURN
        return self.lin(x) * TURN


def count() -> int:
    CALLS["n"] += 1
    return CALLS["n"]


class OfAHelper(Layer):
    def forward(self, x):
        return self.lin(x) * count()


class OfTheClass(Layer):
    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return self.lin(x) * self.calls


class Counted(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count(1)

    def forward(self, x):
        return self.lin(x) * next(self.numbers)


class FirstOnly(Layer):
    first = True

    def forward(self, x):
        y = self.lin(x)
        if self.first:
            self.first = False
            return y * 3
        return y


class Recurrent(Layer):
    """What a call has computed goes into the next one."""

    last: torch.Tensor | None = None

    def forward(self, x):
        y = self.lin(x)
        if self.last is not None:
            y = y + self.last
        self.last = y
        return y


class OfAWeight(Layer):
    """Torch keeps what the weight was at the first call, while the weight is trained."""

    turned: torch.Tensor | None = None

    def forward(self, x):
        if self.turned is None:
            self.turned = self.lin.weight.t()
        return x @ self.turned


def closed() -> nn.Module:
    calls = 0

    class OfAClosure(Layer):
        def forward(self, x):
            nonlocal calls
            calls += 1
            return self.lin(x) * calls

    return OfAClosure()


class Numbers(Layer):
    """Counts where Python keeps numbers beside attributes and lists."""

    def __init__(self, home: str) -> None:
        super().__init__()
        self.home = home
        self.memory, self.array = bytearray(1), array.array("d", [0.0])
        self.held = collections.UserDict(n=0)
        self.parts = [Averages()]

    def forward(self, x):
        if self.home == "memory":
            self.memory[0] += 1
            return self.lin(x) * self.memory[0]
        if self.home == "array":
            self.array[0] += 1
            return self.lin(x) * self.array[0]
        if self.home == "held.data['n']":
            self.held["n"] += 1
            return self.lin(x) * self.held["n"]
        if self.home == "parts[0].mean":
            return self.parts[0](self.lin(x))
        VARIABLE.set(VARIABLE.get() + 1)
        return self.lin(x) * VARIABLE.get()


VARIABLE = contextvars.ContextVar("VARIABLE", default=0)


class Averages(nn.Module):
    """Assigns its buffer; the model has it in a list, and so not among its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        self.mean = 0.5 * self.mean + x.mean(0)
        return x + self.mean


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(3, 3), Steps()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Logged(Layer):
    """Torch's results do not depend on what it notes."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.log: list[int] = []
        self.same = self.log

    def forward(self, x):
        self.steps += 1
        self.log.append(self.steps)
        self.hidden = self.lin(x)
        self.parts = {"relu": self.hidden.relu()}
        return self.parts["relu"] * 2


class CachedTable(Layer):
    """A table that the first call makes, as rotary embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.table: torch.Tensor | None = None
        self.length = 0

    def forward(self, x):
        if x.shape[1] > self.length:
            self.length = x.shape[1]
            self.table = torch.arange(self.length) * 0.5
        return self.lin(x) * self.table


class Collected(Layer):
    """Empties its list of results in each call, and asks what was counted for a line of a log."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[torch.Tensor] = []
        self.seen = collections.defaultdict(list)
        self.n = 0

    def forward(self, x):
        self.n += 1
        self.seen["shapes"].append(tuple(x.shape))
        if self.n % 100 == 0:
            print("a hundred more")
        self.results.clear()
        self.results += [self.lin(x), x]
        return torch.stack(self.results).sum(0)


class OfAPart(nn.Module):
    """A part leaves its loss in an attribute, and the whole reads it in the same call."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Auxiliary()

    def forward(self, x):
        return self.part(x) + self.part.aux


class Auxiliary(Layer):
    def forward(self, x):
        y = self.lin(x)
        self.aux = y.square().mean()
        return y


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (Steps, ["steps"]),
        (Nested, ["blocks.1.steps"]),
        (Entries, ["log", "counts['calls']", "turns"]),
        (OfAnObject, ["settings.scale"]),
        (OfAGlobal, ["TURN"]),
        (OfAHelper, ["CALLS['n']"]),
        (OfTheClass, ["calls"]),
        (closed, ["calls"]),
        (Counted, ["numbers"]),
        (FirstOnly, ["first"]),
        (Recurrent, ["last"]),
        (OfAWeight, ["turned"]),
    ],
)
def test_a_changed_attribute_that_changes_the_results_is_refused(tmp_path, make, names):
    model = make()
    before = Snapshot(model)
    with pytest.raises(ChangedAttributes) as caught:
        compiled(model, tmp_path)
    assert caught.value.names == tuple(names)
    assert caught.value.deviation == "frozen-attribute"
    text = str(caught.value)
    assert "register_buffer" in text and f"at {__file__}:" in text
    assert (line_of(__file__, "changes") in text) is (make in (Steps, Nested))
    kept = make in (OfAGlobal, OfAHelper, closed, Counted)  # the last cannot go back
    changes = before.changes(Snapshot(model))
    assert [c.path for c in changes if "name" not in c.path] == (names if kept else [])


@pytest.mark.parametrize(
    "home", ["memory", "array", "held.data['n']", "parts[0].mean", "VARIABLE['value']"]
)
def test_other_places_of_numbers_are_looked_at(tmp_path, home):
    model, value = Numbers(home), VARIABLE.get()
    with pytest.raises(ChangedAttributes) as caught:
        compiled(model, tmp_path)
    assert caught.value.names == (home,)
    assert (model.memory, model.array[0], model.held["n"]) == (bytearray(1), 0.0, 0)
    assert not model.parts[0].mean.any() and VARIABLE.get() in (value, value + 1)


def test_what_is_typed_in_is_looked_at(tmp_path):
    space = {"Layer": Layer, "__name__": "__main__"}
    code = "def forward(self, x):\n    global K\n    K += 1\n    return self.lin(x) * K\nK = 0"
    exec(compile(code, "<stdin>", "exec"), space)
    typed = type("Typed", (Layer,), {"forward": space["forward"]})
    with pytest.raises(ChangedAttributes, match="K: 0 -> 1"):
        compiled(typed(), tmp_path)


def test_a_generator_of_the_model_is_told_as_one_that_draws(tmp_path, caplog):
    class Draws(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.random = random.Random(1)

        def forward(self, x):
            return x if self.random.random() < -1 else self.lin(x)

    compiled(Draws(), tmp_path)
    assert "Draws draws from random" in caplog.text
    assert "unchanged-attribute" not in caplog.text


def test_a_script_sees_in_its_own_list_what_one_trace_has_seen(tmp_path):
    shapes = []

    class Looking(Layer):
        def forward(self, x):
            shapes.append(tuple(x.shape))
            return self.lin(x)

    compiled(Looking(), tmp_path)
    assert shapes == [(2, 3)]


@pytest.mark.parametrize("make", [Logged, OfAPart, Collected])
def test_what_results_do_not_depend_on_compiles_and_is_told(tmp_path, caplog, make):
    torch.manual_seed(0)
    model = make()
    pef = compiled(model, tmp_path)
    assert caplog.text.count("[deviation: unchanged-attribute]") == 1
    assert_as_torch(model, pef)


def test_attributes_are_as_before_the_compile(tmp_path):
    """A compile is not a call of ``forward``: containers stay the objects that they are."""
    model = Logged()
    log = model.log
    compiled(model, tmp_path)
    assert (model.steps, model.log, hasattr(model, "hidden")) == (0, [], False)
    assert model.log is log and model.same is log
    model(torch.ones(2, 3))
    assert (model.steps, log) == (1, [1])


def test_a_table_that_the_first_call_makes_is_a_constant(tmp_path):
    model = CachedTable()
    pef = compiled(model, tmp_path)
    assert model.table is None
    assert_as_torch(model, pef)


def test_one_more_trace_where_something_changed_and_none_elsewhere(tmp_path, monkeypatch):
    calls = []
    forward = nn.Linear.forward

    def counted(self, x):
        calls.append(self)
        return forward(self, x)

    monkeypatch.setattr(nn.Linear, "forward", counted)
    compiled(nn.Sequential(nn.Linear(3, 3)), tmp_path)
    assert len(calls) == 1
    calls.clear()

    class Counting(Layer):
        steps = 0

        def forward(self, x):
            self.steps += 1
            return self.lin(x)

    compiled(Counting(), tmp_path)
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("draw", "name"), [(random.random, "Python's random"), (np.random.rand, "numpy.random")]
)
def test_numbers_that_python_draws_are_refused(tmp_path, draw, name):
    class Drawing(Layer):
        def forward(self, x):
            return self.lin(x) * float(draw())

    state = random.getstate(), np.random.get_state()[1].tolist()
    with pytest.raises(DrawnNumbers, match=name) as caught:
        compiled(Drawing(), tmp_path)
    assert caught.value.deviation == "drawn-number"
    assert state == (random.getstate(), np.random.get_state()[1].tolist())


def test_a_draw_that_decides_nothing_now_is_told(tmp_path, caplog):
    class LayerDrop(Layer):
        rate = 0.0

        def forward(self, x):
            return x if random.random() < self.rate else self.lin(x)

    compiled(LayerDrop(), tmp_path)
    assert "LayerDrop draws from Python's random" in caplog.text
    assert "[deviation: drawn-while-tracing]" in caplog.text


def test_a_write_into_a_plain_tensor_is_refused_with_its_line(tmp_path):
    class Summed(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.sum = torch.zeros(3)

        def forward(self, x):
            self.sum += x.mean(0)
            return self.lin(x) + self.sum

    model = nn.Sequential(Summed())
    with pytest.raises(MutatedConstant, match=r"(?s)into 0\.sum.*register_buffer\('sum'") as caught:
        compiled(model, tmp_path)
    assert caught.value.deviation == "mutated-constant"
    assert str(caught.value).startswith(f"{__file__}:")
    assert torch.equal(model[0].sum, torch.zeros(3))


def test_a_write_into_a_tensor_of_an_object_has_no_name_of_torch_s(tmp_path):
    class Meter(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.settings = Settings()
            self.settings.scale = torch.zeros(3)

        def forward(self, x):
            self.settings.scale += x.mean(0)
            return self.lin(x)

    with pytest.raises(MutatedConstant, match="neither a parameter nor a buffer") as caught:
        compiled(Meter(), tmp_path)
    assert "lifted" not in str(caught.value)


def test_a_buffer_in_its_place_trains_as_in_torch(tmp_path):
    """What the error advises."""

    class Buffered(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.tensor(0))

        def forward(self, x):
            self.steps += 1
            return self.lin(x) * self.steps

    torch.manual_seed(0)
    model, host = Buffered(), Buffered()
    host.load_state_dict(model.state_dict())
    pef = compiled(model, tmp_path)
    outputs = utils.trace_graph(model, given(), pef=pef)
    for _ in range(3):
        found = samba.session.run(given(), outputs)[0].torch()
        torch.testing.assert_close(found, host(given().torch()).detach())
