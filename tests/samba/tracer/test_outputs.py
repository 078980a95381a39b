"""What forward takes, what it may return, and whose file a line is in."""

from __future__ import annotations

import sysconfig
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import register_pytree_node

import samba
from samba import utils
from samba.tracer import inputs
from samba.tracer.errors import TraceError
from samba.tracer.user_code import is_script_file, is_user_file
from tests.samba.worlds import told
from tests.tracing import trace


class Cache:
    """An object of the model's own, such as the keys and values of earlier tokens."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys


@dataclass
class Result:
    loss: Tensor
    logits: Tensor | None = None
    cache: Cache | None = None


class Pair(NamedTuple):
    loss: Tensor
    rest: Any


class Model(nn.Module):
    """Returns what it is told to make of its loss and its logits."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.lin, self.make = nn.Linear(3, 2), make

    def forward(self, x: Tensor) -> Any:
        out = self.lin(x)
        return self.make(out.sum(), out)


def shapes(make: Any) -> list[tuple[int, ...]]:
    model = Model(make)
    traced = trace(model, (torch.randn(4, 3),))
    assert not model._forward_hooks
    return [traced.values[o.value].shape for o in traced.outputs]


@pytest.mark.parametrize(
    "make",
    [
        lambda loss, out: Result(loss, out),
        lambda loss, out: {"loss": loss, "rest": Result(out)},
        lambda loss, out: Pair(loss, [out, None]),
    ],
)
def test_containers_of_tensors(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert shapes(make) == [(), (4, 2)]
    assert not told(caplog)


class Registered(OrderedDict[str, Any]):
    """As transformers before 5 registers its ``ModelOutput``: torch gets no names of its parts."""

    def __init__(self, **fields: Any) -> None:
        super().__init__({name: value for name, value in fields.items() if value is not None})


register_pytree_node(
    Registered,
    lambda r: (list(r.values()), list(r)),
    lambda values, names: Registered(**dict(zip(names, values, strict=True))),
    serialized_type_name="tests.Registered",
)


@dataclass
class Bare:
    """A container of the same kind that is not a mapping."""

    loss: Tensor
    rest: Any


register_pytree_node(
    Bare,
    lambda b: ([b.loss, b.rest], None),
    lambda values, _: Bare(*values),
    serialized_type_name="tests.Bare",
)


@pytest.mark.parametrize(
    "make",
    [
        lambda loss, out: Registered(loss=loss, logits=out, cache=None),
        lambda loss, out: (loss, Registered(hidden=(out,))),
        lambda loss, out: Bare(loss, Registered(hidden=Bare(out, None))),
        lambda loss, out: Registered(loss=loss, rest=Result(out)),
    ],
)
def test_containers_without_names_of_their_parts(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert shapes(make) == [(), (4, 2)]
    assert not told(caplog)


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda loss, out: Result(loss, out, Cache(out)), "['cache']"),
        (lambda loss, out: (loss, (out, Cache(out))), "[1][1]"),
        (lambda loss, out: (loss, Result(out, None, Cache(out))), "['cache']"),
    ],
)
def test_objects_beside_tensors_are_left_out_and_named(
    make: Any, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert shapes(make) == [(), (4, 2)]
    assert told(caplog) == [
        f"forward() returns {where} (Cache), which is not a tensor: it is left out"
    ]


def test_nothing_but_an_object_is_refused() -> None:
    with pytest.raises(TraceError, match="Cache"):
        shapes(lambda loss, out: Cache(out))


# -- inputs ----------------------------------------------------------------------------


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows by one with every collection, whoever asks for it."""
    found: list[Any] = []
    real = inputs.TraceInputs

    def counted(**parts: Any) -> Any:
        found.append(parts)
        return real(**parts)

    monkeypatch.setattr(inputs, "TraceInputs", counted)
    return found


@pytest.mark.parametrize("between", ["nothing", "a change"])
def test_inputs_are_collected_once(between: str, tmp_path, collected: list[Any]) -> None:
    samba.session.reset()
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    samba.from_torch_model_(model)
    x = samba.randn(2, 4, name="x", batch_dim=0)
    config = {"output_folder": str(tmp_path), "pef_name": "net"}
    pef = samba.session.compile(model, x, name="net", config_dict=config, inference=True)
    assert len(collected) == 1
    if between == "a change":  # then it is traced again, on the same inputs
        model.append(nn.Identity())
    utils.trace_graph(model, x, pef=pef)
    assert len(collected) == 2
    samba.session.reset()


# -- whose file a line is in -----------------------------------------------------------


TORCH, OWN = Path(torch.__file__).parent, Path(samba.__file__).parent
LIBRARY = Path(sysconfig.get_paths()["stdlib"])


@pytest.mark.parametrize("folder", [TORCH, OWN, LIBRARY])
def test_a_folder_beside_a_package_is_none_of_its_parts(folder: Path) -> None:
    assert not is_user_file(str(folder / "module.py"))
    assert is_user_file(str(folder.with_name(f"{folder.name}_own") / "module.py"))


def test_what_was_typed_in_is_in_no_file() -> None:
    assert not is_user_file("<stdin>")


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_an_installed_package_is_no_script(folder: str) -> None:
    file = f"/usr/{folder}/transformers/modeling.py"
    assert is_user_file(file)
    assert not is_script_file(file)
    assert is_script_file("/home/somebody/modeling.py")
