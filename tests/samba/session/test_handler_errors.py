"""What a signal's handler raises while a program is compiled, loaded or first run is what arrives.

It is an ``Exception`` here, which libraries take for an error of their own, and the tests strike in
their code, too.
"""

from __future__ import annotations

import json
import signal
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest
import torch
from torch import nn

import samba
from emulator.errors import LoweringError
from emulator.handler_errors import HandlerErrors
from emulator.held_signals import is_of_script as held_signals_is_of_script
from emulator.kept_files import KeptFiles
from emulator.lowering.failures import failures_of
from emulator.plans import executable_cache
from pef_schema.program import Node
from samba import utils
from tests.samba.session.interrupts import Injection, handler

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

FILES = ("/emulator/", "/samba/", "/pef_schema/", "/jax/", "/torch/", "contextlib.py")


class Timeout(Exception):
    """Of the script."""


def late(number: int, frame: Any) -> None:
    raise Timeout(f"signal {number}")


def ring(*_: Any) -> Any:
    signal.raise_signal(signal.SIGALRM)


class Doubled(torch.autograd.Function):
    """Has a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]  # as scripts write it
        return grad * 2


class Net(nn.Module):
    """Counts its calls, so that it is traced twice; of products, so that kernels are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.second(Doubled.apply(self.first(x).relu())).square().mean()


class Script:
    """A script that compiles, loads and runs once.

    Args:
        folder: Where the PEF goes.
    """

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self._config = {"output_folder": str(folder), "pef_name": "net"}
        samba.from_torch_model_(self.model)
        self._x = samba.from_torch_tensor(torch.linspace(-1, 1, 12).reshape(3, 4), name="x")
        self._optimizer = samba.optim.SGD(self.model.parameters(), lr=0.1)
        self.pef, self.outputs = "", ()
        self._steps: tuple[tuple[int, int], ...] = ()

    def compile(self) -> bytes:
        self.pef = samba.session.compile(
            self.model, self._x, self._optimizer, config_dict=self._config
        )
        return Path(self.pef).read_bytes()

    def load(self) -> list[str]:
        self.outputs = utils.trace_graph(self.model, self._x, self._optimizer, pef=self.pef)
        return [output.sn_name for output in self.outputs]

    def plan(self) -> str:
        """Make a training step's plan, as the first run does."""
        jax.clear_caches()
        loaded = samba.session._slot.loaded
        assert loaded is not None
        loaded.device._plans.clear()
        return loaded.device.plan(self._steps).executables[0].as_text()

    def ready(self, what: str) -> Callable[[], Any]:
        """What does one of the three, after what must be done before."""
        self.compile()
        self.load()
        if what == "plan":
            samba.session.run(self._x, self.outputs)
            loaded = samba.session._slot.loaded
            assert loaded is not None
            (self._steps,) = [steps for steps, _ in loaded.device._plans]
        return getattr(self, what)


def below(frame: Any) -> bool:
    """Whether code is the script's; the function that strikes is not where the strike is."""
    inner = frame.f_code.co_filename.endswith("interrupts.py")
    return held_signals_is_of_script(frame.f_back if inner else frame)


@pytest.fixture(autouse=True)
def strikes_are_where_they_are(monkeypatch):
    monkeypatch.setattr("emulator.held_signals.is_of_script", below)


def struck(work: Callable[[], Any], most: int) -> Iterator[str]:
    """Strike at lines of something, as many as wanted, each in another repetition."""
    counting = Injection(None, FILES, signal.SIGALRM)
    expected = counting.call(work)
    with handler(signal.SIGALRM, late):
        for line in range(7, counting.lines, max(1, counting.lines // most)):
            injection = Injection(line, FILES, signal.SIGALRM)
            try:
                found = injection.call(work)
            except Timeout as error:
                assert str(error) == f"signal {int(signal.SIGALRM)}"
            except BaseException as error:
                error.add_note(f"struck at {injection.where}, line event {line}")
                raise
            else:  # the work was over, or had ended in an error that it takes anyway
                assert not injection.where, f"lost at {injection.where}, line event {line}"
                assert found == expected
            assert signal.getsignal(signal.SIGALRM) is late, injection.where
            assert not jax.config.jax_enable_x64, injection.where
            assert work() == expected, f"after a strike at {injection.where}, line event {line}"
            yield injection.where


def test_it_arrives_from_a_few_lines_of_making_a_plan(tmp_path):
    places = list(struck(Script(tmp_path).ready("plan"), 5))
    assert sum(map(bool, places)) >= 4


class Rung(torch.autograd.Function):
    """Rings in its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]  # as scripts write it
        return ring() or grad


class Ringing(nn.Module):
    """Rings at one place of a trace."""

    place = ""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 2)
        self.first.register_forward_hook(lambda *_: (self.place == "hook" and ring()) or None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        if self.place == "backward":
            h = Rung.apply(h)
        return (ring() or h if self.place == "forward" else h).sum()


def test_it_arrives_from_a_trace(tmp_path):
    model, x = Ringing(), torch.ones(3, 4)
    for model.place in ("forward", "hook", "backward"):
        with handler(signal.SIGALRM, late), pytest.raises(Timeout):
            samba.session.compile(model, x, config_dict={"output_folder": str(tmp_path)})
    model.place = ""
    assert samba.session.compile(model, x, config_dict={"output_folder": str(tmp_path)})


@pytest.mark.slow
@pytest.mark.parametrize(("what", "most"), [("compile", 20), ("load", 20), ("plan", 60)])
def test_it_arrives_from_many_lines(tmp_path, what, most):
    places = list(struck(Script(tmp_path).ready(what), most))
    assert sum(map(bool, places)) >= most // 2


# -- where it used to be lost, or to become another error -----------------------------------------


def test_it_drops_no_executable_that_is_kept(tmp_path):
    files = KeptFiles(tmp_path, limit=1 << 30)
    files.put("a", zlib.compress(b"an executable"))
    client: Any = SimpleNamespace(deserialize_executable=ring, platform="tpu")
    with handler(signal.SIGALRM, late), pytest.raises(Timeout):
        executable_cache._Client(client, files, name="a").compile_and_load(None, None, None)
    assert files.get("a") is not None


class Rings:
    """Handlers that are not plain functions."""

    def late(self, number: int, frame: Any) -> None:
        late(number, frame)

    __call__ = late


NODE = Node(op="aten.relu.default", args=(), kwargs=(), outputs=(), module="net", source="net.py:1")


@pytest.mark.parametrize("make", [lambda: late, lambda: partial(late), lambda: Rings().late, Rings])
def test_it_is_no_failure_of_a_node(make):
    with handler(signal.SIGALRM, make()), pytest.raises(Timeout), failures_of(NODE):
        ring()
    with pytest.raises(LoweringError), failures_of(NODE):
        raise Timeout("of the code that is lowered")


LIBRARY = """
def quiet(function):
    try:
        function()
    except Exception:
        pass
"""


def test_what_a_library_loses_is_raised_in_the_end():
    library: dict[str, Any] = {}
    exec(compile(LIBRARY, json.__file__, "exec"), library)
    with handler(signal.SIGALRM, late), pytest.raises(Timeout), HandlerErrors():
        library["quiet"](ring)
    with handler(signal.SIGALRM, late), pytest.raises(Timeout), HandlerErrors():
        weakref.ref(Rings(), ring)  # Python reports what such a function raises


def test_what_the_script_catches_itself_is_not_raised_again():
    with handler(signal.SIGALRM, late), HandlerErrors(), suppress(Timeout):
        ring()


def test_texts_that_libraries_add_are_taken_away():
    with handler(signal.SIGALRM, late), pytest.raises(Timeout) as caught, HandlerErrors():
        try:
            ring()
        except Timeout as error:
            error.args = ("something else",)
            raise
    assert str(caught.value) == f"signal {int(signal.SIGALRM)}"


def test_handlers_are_those_of_the_script_again():
    with handler(signal.SIGALRM, late), handler(signal.SIGINT, signal.default_int_handler):
        with HandlerErrors() as outer, outer:
            assert signal.getsignal(signal.SIGALRM) is not late
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGALRM) is late
