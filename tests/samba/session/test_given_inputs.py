"""What a run is given: a tensor for two inputs, inputs left out, other types, plain arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samba
import samba.utils as utils
from emulator.errors import IndexOutOfRange, RegionMismatch
from samba.errors import ArgumentError
from samba.graph import FwdGraph
from samba.session.check_pef import GraphMismatch
from samba.session.feeding import UnknownInput
from samba.session.settings import parsed_config
from samba.support.deviations import Deviations
from samba.tracer.inputs import InputError
from tests.samba.graphs import compiled
from tests.samba.session.loading import load, reload_graphs
from tests.samba.worlds import MLP, close, deviations, named, other_batch, told


class Two(nn.Module):
    """Takes two inputs of one form that are not interchangeable."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.a(x) - 2 * self.b(y)


A, B = torch.randn(2, 2, 4, generator=torch.Generator().manual_seed(5))


def tensor(values: torch.Tensor, name: str) -> samba.SambaTensor:
    return samba.from_torch_tensor(values, name=name)


def run(model: nn.Module, inputs: Any) -> torch.Tensor:
    return samba.to_torch(samba.session.run(inputs, model.output_tensors)[0])


# -- one tensor for two inputs ---------------------------------------------------------


@pytest.mark.parametrize("name", ["", "x", "image"])
def test_one_tensor_for_two_inputs_is_two_inputs(name: str, tmp_path: Path) -> None:
    model = Two()
    both = tensor(A, name) if name else A
    load(model, (both, both), tmp_path)
    close(run(model, (both, both)), model(A, A).detach())
    other = tensor(B, name) if name else B
    # Each goes to its place, whatever was one tensor when the model was compiled.
    close(run(model, (both, other)), model(A, B).detach())
    close(run(model, (other, both)), model(B, A).detach())
    close(run(model, (B, A)), model(B, A).detach())
    close(run(model, [other, other]), model(B, B).detach())


def test_one_tensor_under_two_keys(tmp_path: Path) -> None:
    model, both = Two(), tensor(A, "x")
    load(model, {"x": both, "y": both}, tmp_path)
    close(run(model, {"y": both, "x": both}), model(A, A).detach())
    close(run(model, {"y": B, "x": A}), model(A, B).detach())


def test_one_tensor_for_two_inputs_of_other_names(tmp_path: Path) -> None:
    model = Two()
    load(model, (tensor(A, "p"), tensor(B, "q")), tmp_path)
    both = tensor(A, "p")
    close(run(model, (both, both)), model(A, A).detach())
    stranger = tensor(A, "r")
    with pytest.raises(ArgumentError, match="a tensor named 'r'"):
        run(model, (stranger, stranger))


# -- inputs left out ---------------------------------------------------------------------


def test_an_input_that_no_run_was_given_is_told_once(tmp_path: Path, caplog: Any) -> None:
    model = Two()
    load(model, (A, B), tmp_path)
    for values in (A, B):
        close(run(model, {"x": values}), model(values, B).detach())
    assert deviations(caplog) == ["input-of-trace"]
    assert told(caplog)[0].startswith("session.run() was given no y, so it uses the values")


def test_an_input_that_another_graph_was_given_is_not_told(tmp_path: Path, caplog: Any) -> None:
    def add() -> tuple[Two, list[samba.SambaTensor]]:
        model = samba.from_torch_model_(Two())
        inputs = [tensor(A, "x"), tensor(B, "y")]
        for name in ("a", "b"):
            outputs = utils.trace_multigraph(model, inputs, trace_prefix=name)
            samba.session.add_graph(FwdGraph(inputs, outputs, name=name))
        return model, inputs

    _, inputs = reload_graphs(add, tmp_path)
    samba.session.run(inputs[:1], graph_name="a")
    assert deviations(caplog) == ["input-of-trace"]  # y, which no graph was given
    samba.session.run(inputs[1:], graph_name="b")
    for name in ("a", "b"):
        samba.session.run((), graph_name=name)
    assert len(deviations(caplog)) == 1


def test_none_in_the_place_of_an_input_is_meant(tmp_path: Path, caplog: Any) -> None:
    model = Two()
    load(model, (A, B), tmp_path)
    for inputs in ((A, None), {"x": A, "y": None}, {"y": None, "x": A}):
        utils.trace_graph(model, (A, B), pef=samba.session.pef_path)  # no run was given anything
        close(run(model, inputs), model(A, B).detach())
    assert told(caplog) == []


def test_a_script_that_writes_inputs_itself_means_it(tmp_path: Path, caplog: Any) -> None:
    model = Two()
    inputs = (tensor(A, "x"), tensor(B, "y"))
    load(model, inputs, tmp_path)
    inputs[0].sn_data = B
    inputs[1].sn_data = A
    close(run(model, None), model(B, A).detach())
    samba.session.to_device()
    close(run(model, None), model(A, B).detach())
    assert told(caplog) == []


def test_an_input_of_the_trace_is_checked_when_a_run_uses_it(tmp_path: Path) -> None:
    """The tensors of a trace may be anything of the right form, as long as no run takes them."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Embedding(5, 3)

        def forward(self, i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return self.rows(i) + x

    model, x = Table(), torch.ones(2, 3)
    load(model, (torch.tensor([7, 1]), x), tmp_path)
    with pytest.raises(IndexOutOfRange, match="input i holds 7 at "):
        run(model, (None, x))
    i = torch.tensor([4, 1])
    close(run(model, (i, x)), model(i, x).detach())


# -- other types --------------------------------------------------------------------------


def test_tensors_of_another_precision_are_cast_and_told_once(pefs, caplog: Any) -> None:
    scene = pefs.loaded(MLP)
    for seed in range(3):
        batch = other_batch(seed)
        given = {"x": batch["x"].double(), "y": batch["y"].int()}
        scene.run(named(given))
        scene.host_step(batch)
    scene.assert_follows()
    assert deviations(caplog) == ["cast-input", "cast-input"]
    assert told(caplog) == [
        "input x: a tensor of float64 is cast to float32, for which the program was compiled; pass "
        "it as .to(torch.float32) to avoid this",
        "input y: a tensor of int32 is cast to int64, for which the program was compiled; pass it "
        "as .to(torch.int64) to avoid this",
    ]


def test_numbers_that_do_not_fit_the_type_are_refused(tmp_path: Path) -> None:
    class Sum(nn.Module):
        def forward(self, i: torch.Tensor) -> torch.Tensor:
            return i.float() * 2

    model = Sum()
    load(model, (torch.ones(3, dtype=torch.int16),), tmp_path)
    good = torch.tensor([-32768, 0, 32767])
    close(run(model, (good,)), good * 2.0)
    with pytest.raises(RegionMismatch, match=r"int64 numbers from 0 to 32768.*larger dtype"):
        run(model, (torch.tensor([32768, 0, 0]),))
    with pytest.raises(RegionMismatch, match=r"found float32.*pass it as .to\(torch.int16\)"):
        run(model, (good.float(),))


# -- arguments by name ---------------------------------------------------------------------


class Options(nn.Module):
    """A scale, a switch, a mode and a container with a number, as language models take them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(4, 4)

    def forward(
        self,
        x: torch.Tensor,
        *,
        scale: float = 1.0,
        use_cache: bool = False,
        mode: str = "sum",
        past: Any = None,
        **others: torch.Tensor,
    ) -> Any:
        y = self.layer(x) * scale + sum(others.values())
        if use_cache:
            y = y + past[0] * past[1]
        y = y.sum() if mode == "sum" else y.mean()
        return (y, x + 1) if use_cache else (y,)


def keywords() -> dict[str, Any]:
    return {
        "bias": tensor(A + 1, "bias"),
        "x": tensor(A, "x"),
        "scale": 2.5,
        "use_cache": True,
        "mode": "mean",
        "past": (tensor(B, "past"), 2),
    }


def plain_keywords() -> dict[str, Any]:
    """What torch is given."""
    return keywords() | {"bias": A + 1, "x": A, "past": (B, 2)}


def test_arguments_that_are_no_tensors_are_constants(tmp_path: Path, caplog: Any) -> None:
    model, twin = samba.from_torch_model_(Options()), Options()
    optimizer, theirs = (
        torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.0) for m in (model, twin)
    )
    outputs = load(model, keywords(), tmp_path, optimizer)
    given = keywords()
    tensors = {"x": given["x"], "bias": given["bias"], "past": given["past"]}
    for inputs in (given, tensors, (A, B, A + 1)):
        theirs.zero_grad()
        wanted = twin(**plain_keywords())
        wanted[0].backward()
        theirs.step()
        for found, want in zip(samba.session.run(inputs, outputs), wanted, strict=True):
            close(found, want.detach())
    assert told(caplog) == []
    for other in (2.0, True):
        with pytest.raises(
            ArgumentError, match=r"input_tensors\['scale'\].*expected 2.5"
        ) as caught:
            samba.session.run(given | {"scale": other}, outputs)
        assert caught.value.deviation == "changed-argument"
        wanted = f"{other}", "2.5, which the graph was traced with"
        assert (caught.value.found, caught.value.wanted) == wanted
    with pytest.raises(UnknownInput, match="scale"):
        samba.session.run(given | {"scale": torch.tensor(2.5)}, outputs)
    with pytest.raises(ArgumentError, match=r"input_tensors\['past_1'\].*found 3, expected 2"):
        samba.session.run(given | {"past": (given["past"][0], 3)}, outputs)


def test_another_constant_is_another_model_for_a_pef_and_another_order_is_not(
    tmp_path: Path,
) -> None:
    model, given = samba.from_torch_model_(Options()), keywords()
    load(model, given, tmp_path, inference=True)
    pef = samba.session.pef_path
    for name, value in (("scale", 3.5), ("mode", "sum")):
        with pytest.raises(GraphMismatch, match="options"):
            utils.trace_graph(model, given | {name: value}, pef=pef)
    first = Path(pef).read_bytes()
    turned = dict(reversed(given.items()))
    outputs = load(model, turned, tmp_path / "turned", inference=True)
    assert Path(samba.session.pef_path).read_bytes() == first
    found = samba.session.run(dict(reversed(turned.items())), outputs)
    for ours, theirs in zip(found, Options()(**plain_keywords()), strict=True):
        close(ours, theirs.detach())


def test_a_position_takes_tensors_alone() -> None:
    with pytest.raises(InputError, match="x: float; expected tensors or None"):
        samba.session.compile(Options(), (2.5,))
    with pytest.raises(InputError, match="scale: object; expected tensors or None"):
        samba.session.compile(Options(), {"x": torch.zeros(2, 4), "scale": object()})


def test_a_graph_of_several_takes_the_dict_it_was_traced_with(tmp_path: Path) -> None:
    given = keywords()
    outputs = utils.trace_multigraph(samba.from_torch_model_(Options()), given)
    samba.session.add_graph(FwdGraph(given, outputs, name="only"))
    samba.session.init_multigraph_runtime(compiled(tmp_path, "options"))
    tensors = {"x": given["x"], "bias": given["bias"], "past": given["past"][:1]}
    found = samba.session.run(tensors, outputs, graph_name="only")
    for ours, theirs in zip(found, Options()(**plain_keywords()), strict=True):
        close(ours, theirs.detach())


def test_compare_calls_the_model_with_them() -> None:
    assert utils.compare(Options(), plain_keywords()).ok


# -- config_dict ---------------------------------------------------------------------------


def test_a_misspelt_setting_is_told_with_the_right_one(
    tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(parsed_config.__globals__, "deviations", Deviations())
    config = {"optim_levl": "o0", "learning_rate": 0.1, "hidden_size": 4}
    for _ in range(2):
        load(Two(), (A, B), tmp_path, config=config)
    assert deviations(caplog) == ["unknown-config"]
    assert told(caplog) == [
        "config_dict has 'optim_levl', which is not a setting and is ignored; did you mean "
        "'optim_level'?"
    ]


def test_a_whole_command_line_has_no_misspelt_settings(tmp_path: Path, caplog: Any) -> None:
    """Apps pass vars(args), their own options included."""
    args = samba.utils.argparser.parse_app_args(
        ["compile", "--output-folder", str(tmp_path)],
        common_parser_fn=lambda p: p.add_argument("--optim-levels", default=3),
    )
    samba.session.compile(Two(), (A, B), None, config_dict=vars(args))
    assert told(caplog) == []


def test_a_microbatch_divides_the_batch(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"'microbatch_size'.*found 3.*divisor of .* 2"):
        load(Two(), (A, B), tmp_path, config={"batch_size": 2, "microbatch_size": 3})


@pytest.mark.parametrize("microbatch", [1, 2, 4])
def test_microbatches_give_the_gradients_of_the_whole_batch(
    microbatch: int, tmp_path: Path
) -> None:
    """What torch adds up over microbatches of equal size, for a mean over the batch."""
    torch.manual_seed(1)
    model = nn.Linear(3, 2)
    host = nn.Linear(3, 2)
    host.load_state_dict(model.state_dict())
    x = torch.randn(4, 3)

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.gelu(self.layer(x)).mean()

    trained = samba.from_torch_model_(Loss())
    optimizer = samba.optim.SGD(trained.parameters(), lr=0.0)
    load(
        trained, (x,), tmp_path, optimizer, config={"batch_size": 4, "microbatch_size": microbatch}
    )
    run(trained, (x,))
    for part in x.split(microbatch):
        (F.gelu(host(part)).mean() * len(part) / len(x)).backward()
    close(trained.layer.weight.sn_grad, host.weight.grad)
