"""A model that was found equal to a PEF is not traced again, unless something says otherwise."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from ctypes import c_int
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import samba
from emulator.kept_files import CACHE_VARIABLE, KeptFiles
from samba import utils
from samba.errors import ArgumentError
from samba.remembering import memory, trace_key
from samba.session.check_pef import GraphMismatch, OptimizerMismatch
from samba.session.program_slot import parse_with_digest
from samba.tracer import trace_cache
from samba.tracer.inputs import collect_inputs
from tests.processes import SECONDS
from tests.tracing import counted_traces

X, Y = torch.randn(4, 6), torch.randint(0, 3, (4,))


class Net(nn.Module):
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.linear = nn.Linear(6, 3)
        self.drop = nn.Dropout(0.25)
        self.criterion = nn.CrossEntropyLoss()
        self.factor = 2.0
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        factor = self.factor if self.scale.item() == 1 else 1.0
        out = self.linear(self.drop(self.norm(x))) * factor
        return self.criterion(out, y), out


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows by one with every trace; nothing is kept but in files of this test."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(memory.TRACE_VARIABLE, raising=False)
    return counted_traces(monkeypatch)


def built() -> tuple[nn.Module, tuple[Tensor, Tensor], torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Net()
    samba.from_torch_model_(model)
    inputs = samba.from_torch_tensor(X, name="x"), samba.from_torch_tensor(Y, name="y")
    return model, inputs, samba.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.fixture
def pef(tmp_path: Path, traces: list[Any]) -> Iterator[str]:
    """The path of a PEF that was compiled in another process, as far as one can tell."""
    samba.session.reset()
    model, inputs, optimizer = built()
    config = {"output_folder": str(tmp_path), "pef_name": "net"}
    yield samba.session.compile(model, inputs, optimizer, name="net", config_dict=config)
    samba.session.reset()


def losses(pef: str, model: nn.Module | None = None) -> list[float]:
    """Losses of three steps of a model that is loaded as in another process."""
    own, inputs, optimizer = built()
    outputs = utils.trace_graph(own if model is None else model, inputs, optimizer, pef=pef)
    runs = [samba.session.run(inputs, outputs)[0] for _ in range(3)]
    return [float(samba.to_torch(run).sum()) for run in runs]


def remembered(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "traces").iterdir())


def test_what_was_compiled_is_not_traced_to_be_run(
    pef: str, traces: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(remembered(tmp_path)) == 1
    first = losses(pef)
    assert len(traces) == 1
    monkeypatch.setenv(memory.TRACE_VARIABLE, "always")
    assert losses(pef) == first
    assert len(traces) == 2


def test_a_run_remembers_too(pef: str, traces: list[Any], tmp_path: Path) -> None:
    for path in remembered(tmp_path):
        path.unlink()
    assert losses(pef) == losses(pef)
    assert len(traces) == 2
    assert len(remembered(tmp_path)) == 1


class Experts(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 8, 8, dtype=dtype))

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return F.grouped_mm(x, self.weight, offs=ends)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_products_are_remembered(
    traces: list[Any], tmp_path: Path, dtype: torch.dtype
) -> None:
    """The meta device takes bfloat16 alone."""

    def given() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
        samba.session.reset()
        model = samba.from_torch_model_(Experts(dtype))
        x, ends = torch.ones(6, 8, dtype=dtype), torch.tensor([2, 6], dtype=torch.int32)
        named = samba.from_torch_tensor(x, name="x"), samba.from_torch_tensor(ends, name="ends")
        return model, named

    model, inputs = given()
    config = {"output_folder": str(tmp_path), "pef_name": "experts"}
    pef = samba.session.compile(model, inputs, name="experts", inference=True, config_dict=config)
    model, inputs = given()
    outputs = utils.trace_graph(model, inputs, pef=pef)
    assert len(traces) == 1
    (product,) = samba.session.run(inputs, outputs)
    assert samba.to_torch(product).unique().tolist() == [8]
    samba.session.reset()


@pytest.mark.parametrize("change", ["an attribute", "a buffer whose value is in the graph"])
def test_a_changed_model_is_found(pef: str, traces: list[Any], change: str) -> None:
    model, inputs, optimizer = built()
    if change == "an attribute":
        model.factor = 3.0
    else:
        model.scale.fill_(2)
    with pytest.raises(GraphMismatch):
        utils.trace_graph(model, inputs, optimizer, pef=pef)
    assert len(traces) == 2


def test_optimizers_are_still_compared(pef: str, traces: list[Any]) -> None:
    model, inputs, _ = built()
    with pytest.raises(OptimizerMismatch):
        utils.trace_graph(model, inputs, samba.optim.AdamW(model.parameters()), pef=pef)
    assert len(traces) == 1


def test_another_pef_is_compared(pef: str, traces: list[Any], tmp_path: Path) -> None:
    model, inputs, optimizer = built()
    model.factor = 3.0
    config = {"output_folder": str(tmp_path), "pef_name": "net"}
    assert samba.session.compile(model, inputs, optimizer, name="net", config_dict=config) == pef
    with pytest.raises(GraphMismatch):
        losses(pef)
    assert len(traces) == 3


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _foreign(path: Path) -> None:
    path.chmod(0o666)


def _of_other_fields(path: Path) -> None:
    KeptFiles(path.parent, limit=1 << 20).put(path.stem, b'{"trace":{},"told":[]}')


def _of_other_values(path: Path) -> None:
    files = KeptFiles(path.parent, limit=1 << 20)
    record = json.loads(files.get(path.stem) or b"")
    record["trace"]["outputs"] = record["trace"]["outputs"][:1]
    files.put(path.stem, json.dumps(record).encode())


def _field(name: str, value: Any) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        files = KeptFiles(path.parent, limit=1 << 20)
        record = json.loads(files.get(path.stem) or b"")
        held = record["trace"] if name in record["trace"] else record
        held[name] = value(held[name]) if callable(value) else value
        files.put(path.stem, json.dumps(record).encode())

    return damage


BY_HAND: dict[str, Callable[[Path], None]] = {
    "not JSON": lambda path: KeptFiles(path.parent, limit=1 << 20).put(path.stem, b"\xff{"),
    "a list": lambda path: KeptFiles(path.parent, limit=1 << 20).put(path.stem, b"[]"),
    "deep": lambda path: KeptFiles(path.parent, limit=1 << 20).put(path.stem, b"[" * 100_000),
    "no sources": _field("sources", []),
    "sources in another order": _field("sources", lambda held: held[::-1]),
    "a value that is none": _field("sources", lambda held: [[999, *held[0][1:]], *held[1:]]),
    "a value before the first": _field("sources", lambda held: [[-1, *held[0][1:]], *held[1:]]),
    "a role that is none": _field("sources", lambda held: [[held[0][0], 99, *held[0][2:]]]),
    "a buffer that is none": _field("known", [["other", "0"]]),
    "a buffer of another module": _field("known", [["norm.running_mean", "0"]]),
    "updates of others": _field("updates", [[0, 1]]),
    "a structure that is none": _field("structure", "heap"),
    "texts that are none": _field("told", [["a"]]),
    "looks that are none": _field("looks", [1]),
    "state that is none": _field("graded_state", 3),
    "views that are none": _field("viewed", [["a"]]),
}  # fmt: skip


def test_a_record_that_a_hand_changed_is_dropped(pef: str, tmp_path: Path) -> None:
    model, inputs, _ = built()
    given = collect_inputs(model, inputs)
    program, digest = parse_with_digest(pef)
    memories = memory.open_memory(model, given, inference=False)
    assert memories is not None
    (path,) = remembered(tmp_path)
    whole = path.read_bytes()
    for what, damage in BY_HAND.items():
        path.write_bytes(whole)
        damage(path)
        assert memories.recall(program.graphs[0], pef=digest) is None, what
    path.write_bytes(whole)
    assert memories.recall(program.graphs[0], pef=digest) is not None


def test_a_record_that_cannot_be_used_is_made_anew(
    pef: str, traces: list[Any], tmp_path: Path
) -> None:
    first = losses(pef)
    (path,) = remembered(tmp_path)
    for count, damage in enumerate((_cut, _foreign, _of_other_fields, _of_other_values), 2):
        damage(path)
        assert losses(pef) == first, damage
        assert len(traces) == count, damage
        assert losses(pef) == first, damage
        assert len(traces) == count, damage


def test_a_folder_that_cannot_be_written_is_told_once(
    pef: str,
    traces: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    losses(pef)
    losses(pef)
    assert len(traces) == 3
    lines = [r.getMessage() for r in caplog.records if "traces" in r.getMessage()]
    assert len(lines) == 1
    assert "continuing without it" in lines[0]


def test_another_version_traces(
    pef: str, traces: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_key, "own_version", lambda: "another one")
    losses(pef)
    assert len(traces) == 2


def test_a_full_folder_forgets_the_oldest(
    pef: str, traces: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = remembered(tmp_path)
    monkeypatch.setattr(memory, "_LIMIT", path.stat().st_size + 10)
    monkeypatch.setattr(trace_key, "own_version", lambda: "another one")
    losses(pef)
    losses(pef)
    assert len(traces) == 2
    assert len(remembered(tmp_path)) == 1


def test_a_wish_that_is_none_is_refused(pef: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(memory.TRACE_VARIABLE, "sometimes")
    with pytest.raises(ArgumentError, match="SAMBA_TRACE"):
        losses(pef)


class Odd(nn.Module):
    """Its trace says something, and it does what no key has, if told."""

    def __init__(self, does: Callable[[Any], None] = lambda x: None) -> None:
        super().__init__()
        self.linear, self.does = nn.Linear(6, 3), does

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        self.does("this")
        return self.linear(x).sum(), object()


def compiled(model: nn.Module, tmp_path: Path) -> str:
    samba.session.reset()
    config = {"output_folder": str(tmp_path), "pef_name": "net"}
    return samba.session.compile(model, X, name="net", config_dict=config, inference=True)


def _loads(model: nn.Module, tmp_path: Path) -> None:
    path = compiled(model, tmp_path)
    trace_cache._kept.clear()
    utils.trace_graph(model, X, pef=path)
    samba.session.reset()


def test_what_a_trace_tells_is_told_again(
    traces: list[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _loads(Odd(), tmp_path)
    assert len(traces) == 1
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(told) == 2, told
    assert told[0] == told[1]
    assert "[deviation: " in told[0]


def test_what_cannot_be_compared_is_traced_and_named(
    traces: list[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "samba"):
        _loads(Odd(print), tmp_path)
    assert len(traces) == 2
    assert "forward() prints or warns 'this" in caplog.text


def test_state_that_nothing_sees_is_not_remembered(
    traces: list[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each call adds another number, which is kept where no snapshot of a model looks."""
    calls = c_int(0)

    class Counting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            calls.value += 1
            return x + calls.value

    with caplog.at_level(logging.INFO, "samba"):
        compiled(Counting(), tmp_path)
    assert "behaves differently in a later call" in caplog.text
    assert not (tmp_path / "cache" / "traces").exists()
    samba.session.reset()


def test_a_module_that_forward_loads_is_looked_at(
    traces: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = tmp_path / "loaded_late.py"
    late.write_text("FACTOR = 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    class Late(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            from loaded_late import FACTOR  # pyright: ignore[reportMissingImports]

            return x * FACTOR

    path = compiled(Late(), tmp_path)
    for text, number in (("FACTOR = 2\n", 1), ("FACTOR = 3.0\n", 2)):
        sys.modules.pop("loaded_late", None)
        late.write_text(text)
        if number == 1:
            utils.trace_graph(Late(), X, pef=path)
        else:
            with pytest.raises(GraphMismatch):
                utils.trace_graph(Late(), X, pef=path)
        assert len(traces) == number
    sys.modules.pop("loaded_late", None)
    samba.session.reset()


def test_two_that_write_at_once_and_one_that_reads(tmp_path: Path) -> None:
    """Whoever reads finds all of one record or none, whenever the others write."""
    name, records = "a" * 64, [bytes([n]) * 300_000 for n in (1, 2)]
    started = threading.Barrier(3)

    def write(data: bytes) -> None:
        files = KeptFiles(tmp_path / "traces", limit=1 << 20)
        started.wait(SECONDS)
        for _ in range(20):
            files.put(name, data)

    writers = [threading.Thread(target=write, args=(data,)) for data in records]
    for writer in writers:
        writer.start()
    started.wait(SECONDS)
    files, found = KeptFiles(tmp_path / "traces", limit=1 << 20), set[bytes | None]()
    while any(writer.is_alive() for writer in writers):
        found.add(files.get(name))
    assert found <= {None, *records}
    assert files.get(name) in records
    assert [path.suffix for path in (tmp_path / "traces").iterdir()] == [".kept"]


def test_a_record_that_changes_while_it_is_read(
    pef: str, traces: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process writes the record again between two looks: the one that was opened holds."""
    first = losses(pef)
    (path,) = remembered(tmp_path)
    whole, opened = path.read_bytes(), Path.open

    def replaced(self: Path, *args: Any, **options: Any) -> Any:
        file = opened(self, *args, **options)
        if self == path:
            (tmp_path / "other").write_bytes(whole[:-7])
            (tmp_path / "other").replace(path)
        return file

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", replaced)
        assert losses(pef) == first
    assert len(traces) == 1
    assert losses(pef) == first, "what lies there now is cut, and made again"
    assert len(traces) == 2
