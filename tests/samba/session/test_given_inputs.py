"""What a run is given: a tensor for two inputs, inputs left out, other types, plain arguments."""

from __future__ import annotations

import itertools
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
from samba.session.settings import parsed_config
from samba.support.deviations import Deviations
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


def loaded(folder: Path, model: nn.Module, inputs: Any, **config: Any) -> nn.Module:
    config = {"output_folder": str(folder), **config}
    pef = samba.session.compile(model, inputs, None, config_dict=config)
    utils.trace_graph(model, inputs, None, pef=pef, config_dict=config)
    return model


def run(model: nn.Module, inputs: Any) -> torch.Tensor:
    return samba.to_torch(samba.session.run(inputs, model.output_tensors)[0])


# -- one tensor for two inputs ---------------------------------------------------------


@pytest.mark.parametrize("name", ["", "x", "image"])
def test_one_tensor_for_two_inputs_is_two_inputs(name: str, tmp_path: Path) -> None:
    model = Two()
    both = tensor(A, name) if name else A
    loaded(tmp_path, model, (both, both))
    close(run(model, (both, both)), model(A, A).detach())
    other = tensor(B, name) if name else B
    # Each goes to its place, whatever was one tensor when the model was compiled.
    close(run(model, (both, other)), model(A, B).detach())
    close(run(model, (other, both)), model(B, A).detach())
    close(run(model, (B, A)), model(B, A).detach())
    close(run(model, [other, other]), model(B, B).detach())


def test_one_tensor_under_two_keys(tmp_path: Path) -> None:
    model, both = Two(), tensor(A, "x")
    loaded(tmp_path, model, {"x": both, "y": both})
    close(run(model, {"y": both, "x": both}), model(A, A).detach())
    close(run(model, {"y": B, "x": A}), model(A, B).detach())


def test_one_tensor_for_two_inputs_of_other_names(tmp_path: Path) -> None:
    model = Two()
    loaded(tmp_path, model, (tensor(A, "p"), tensor(B, "q")))
    both = tensor(A, "p")
    close(run(model, (both, both)), model(A, A).detach())
    stranger = tensor(A, "r")
    with pytest.raises(ArgumentError, match="a tensor named 'r'"):
        run(model, (stranger, stranger))


# -- inputs left out ---------------------------------------------------------------------


def test_an_input_that_no_run_was_given_is_told_once(tmp_path: Path, caplog: Any) -> None:
    model = Two()
    loaded(tmp_path, model, (A, B))
    for values in (A, B):
        close(run(model, {"x": values}), model(values, B).detach())
    assert deviations(caplog) == ["input-of-trace"]
    assert told(caplog)[0].startswith("session.run() was given no y, so it uses the values")


def test_an_input_given_before_keeps_its_values_without_a_word(tmp_path: Path, caplog: Any) -> None:
    model = Two()
    loaded(tmp_path, model, (A, A))
    run(model, (A, B))
    close(run(model, {"x": B}), model(B, B).detach())
    close(run(model, None), model(B, B).detach())
    assert told(caplog) == []


@pytest.mark.parametrize("inputs", [(A, None), {"x": A, "y": None}, {"y": None, "x": A}])
def test_none_in_the_place_of_an_input_is_meant(inputs: Any, tmp_path: Path, caplog: Any) -> None:
    model = Two()
    loaded(tmp_path, model, (A, B))
    close(run(model, inputs), model(A, B).detach())
    assert told(caplog) == []


def test_a_script_that_writes_inputs_itself_means_it(tmp_path: Path, caplog: Any) -> None:
    model = Two()
    inputs = (tensor(A, "x"), tensor(B, "y"))
    loaded(tmp_path, model, inputs)
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
    loaded(tmp_path, model, (torch.tensor([7, 1]), x))
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
        "input x: a float64 tensor is cast to float32, for which the program was compiled; pass it "
        "as .to(torch.float32) to avoid this",
        "input y: a int32 tensor is cast to int64, for which the program was compiled; pass it as "
        ".to(torch.int64) to avoid this",
    ]


def test_numbers_that_do_not_fit_the_type_are_refused(tmp_path: Path) -> None:
    class Sum(nn.Module):
        def forward(self, i: torch.Tensor) -> torch.Tensor:
            return i.float() * 2

    model = Sum()
    loaded(tmp_path, model, (torch.ones(3, dtype=torch.int16),))
    good = torch.tensor([-32768, 0, 32767])
    close(run(model, (good,)), good * 2.0)
    with pytest.raises(RegionMismatch, match=r"int64 numbers from 0 to 32768.*larger dtype"):
        run(model, (torch.tensor([32768, 0, 0]),))
    with pytest.raises(RegionMismatch, match=r"found float32.*pass it as .to\(torch.int16\)"):
        run(model, (good.float(),))


# -- arguments by name ---------------------------------------------------------------------


class Named(nn.Module):
    """Takes tensors and plain arguments by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        use_cache: bool = False,
        mode: str = "sum",
        times: float = 1.0,
        **others: torch.Tensor,
    ) -> Any:
        h = self.layer(x) - y * times + sum(others.values())
        h = h.sum() if mode == "sum" else h
        return (h, x + 1) if use_cache else (h,)


def test_the_order_of_names_does_not_matter(tmp_path: Path) -> None:
    model = Named()
    given = {"x": A, "y": B, "bias": A + 1}
    files = set()
    pef = ""
    orders = list(itertools.permutations(given))[::2]
    for number, order in enumerate(orders):
        inputs = {key: given[key] for key in order}
        folder = tmp_path / str(number)
        pef = samba.session.compile(model, inputs, None, config_dict={"output_folder": str(folder)})
        files.add(Path(pef).read_bytes())
    assert len(files) == 1
    for order in orders:
        inputs = {key: given[key] for key in order}
        utils.trace_graph(model, inputs, None, pef=pef)
        close(run(model, inputs), model(**given)[0].detach())


def test_arguments_that_are_no_tensors_are_constants(tmp_path: Path, caplog: Any) -> None:
    model = Named()
    given: dict[str, Any] = {}
    for number, plain in enumerate(
        ({"use_cache": True}, {"use_cache": False, "mode": "mean"}, {"times": 3.0, "mode": "sum"})
    ):
        given = {**plain, "y": B, "x": A}
        loaded(tmp_path / str(number), model, given)
        wanted = model(**given)
        assert len(model.output_tensors) == len(wanted)
        for inputs in (given, {"x": A, "y": B}, (A, B)):
            close(run(model, inputs), wanted[0].detach())
    assert told(caplog) == []
    with pytest.raises(ArgumentError) as caught:
        run(model, {**given, "times": 4.0})
    assert caught.value.deviation == "changed-argument"
    assert (caught.value.found, caught.value.wanted) == (
        "4.0",
        "3.0, which the graph was traced with",
    )


def test_a_load_with_another_constant_is_another_model(tmp_path: Path) -> None:
    model = Named()
    given = {"x": A, "y": B, "times": 2.0}
    pef = samba.session.compile(model, given, None, config_dict={"output_folder": str(tmp_path)})
    with pytest.raises(samba.errors.SambaError, match="not the one this PEF was compiled from"):
        utils.trace_graph(model, {**given, "times": 5.0}, None, pef=pef)


# -- config_dict ---------------------------------------------------------------------------


def test_a_misspelt_setting_is_told_with_the_right_one(
    tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(parsed_config.__globals__, "deviations", Deviations())
    for _ in range(2):
        loaded(tmp_path, Two(), (A, B), optim_levl="o0", learning_rate=0.1, hidden_size=4)
    assert deviations(caplog) == ["unknown-config"]
    assert told(caplog) == [
        "config_dict has 'optim_levl', which is no setting and is ignored; did you mean "
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
        loaded(tmp_path, Two(), (A, B), batch_size=2, microbatch_size=3)


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
    config = {"output_folder": str(tmp_path), "batch_size": 4, "microbatch_size": microbatch}
    pef = samba.session.compile(trained, (x,), optimizer, config_dict=config)
    utils.trace_graph(trained, (x,), optimizer, pef=pef)
    run(trained, (x,))
    for part in x.split(microbatch):
        (F.gelu(host(part)).mean() * len(part) / len(x)).backward()
    close(trained.layer.weight.sn_grad, host.weight.grad)
