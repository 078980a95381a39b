"""Capture: names, source lines, constants, tied weights, inputs of every form."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import samba
from pef_schema.program import Ref, Role
from samba.tracer.errors import DataDependentBranch, ShapeMismatch, TraceError, UnsupportedOps
from samba.tracer.inputs import InputError
from samba.tracer.traced import Traced
from tests.samba.refusals import line_of
from tests.tracing import trace


class LogReg(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin_layer = nn.Linear(4, 3)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, image: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        out = self.lin_layer(image)
        return self.criterion(out, label), out


def source_names(traced: Traced, role: Role) -> list[str]:
    return [s.name for s in traced.sources if s.role is role]


def test_names_follow_sambaflow() -> None:
    traced = trace(LogReg(), (torch.randn(2, 4), torch.tensor([0, 1])))
    assert source_names(traced, Role.WEIGHT) == [
        "logreg__lin_layer__weight",
        "logreg__lin_layer__bias",
    ]
    assert [o.name for o in traced.outputs] == [
        "logreg__criterion__crossentropyloss__outputs__0",
        "logreg__lin_layer__linear__outputs__0",
    ]
    assert source_names(traced, Role.INPUT) == ["image", "label"]


def test_every_node_names_the_users_line() -> None:
    traced = trace(LogReg(), (torch.randn(2, 4), torch.tensor([0, 1])))
    files = {node.source.rsplit(":", 1)[0] for node in traced.nodes}
    assert files == {__file__}
    assert all(node.module for node in traced.nodes)


def test_repeated_functional_ops_get_suffixes() -> None:
    class Chain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(F.relu(F.relu(x) + 1) + 1)

    traced = trace(Chain(), (torch.randn(3),))
    names = [traced.values[n.outputs[0]].name for n in traced.nodes if "relu" in n.op]
    assert names == ["chain__relu__outputs__0" + s for s in ("", "_1", "_2")]


def test_inputs_take_every_form() -> None:
    x, y = samba.randn(2, 4, name="image"), samba.randint(3, (2,), name="label")
    expected = ["image", "label"]
    for form in ((x, y), [x, y], {"image": x, "label": y}):
        assert source_names(trace(LogReg(), form), Role.INPUT) == expected

    class One(nn.Module):
        def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
            return x * 2 if scale is None else x * scale

    assert source_names(trace(One(), x), Role.INPUT) == ["image"]
    assert source_names(trace(One(), (x, None)), Role.INPUT) == ["image"]
    with_scale = trace(One(), (x, torch.ones(4)))
    assert source_names(with_scale, Role.INPUT) == ["image", "scale"]


def test_equal_input_names_are_told_apart() -> None:
    x = samba.randn(2, 4, name="x")
    traced = trace(nn.Bilinear(4, 4, 2), (x, samba.randn(2, 4, name="x")))
    assert source_names(traced, Role.INPUT) == ["x", "x_1"]


def test_bad_inputs_say_what_was_found() -> None:
    with pytest.raises(InputError, match="image: int; expected tensors or None"):
        trace(LogReg(), (3, torch.tensor([0])))
    with pytest.raises(InputError, match=r"keyword\(s\) \['picture'\]; expected some of"):
        trace(LogReg(), {"picture": torch.randn(2, 4)})
    with pytest.raises(InputError, match="found str"):
        trace(LogReg(), "image")


def test_attributes_of_every_kind_become_constants() -> None:
    class Constants(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain = torch.full((4,), 2.0)
            self.named = samba.SambaTensor(torch.full((4,), 3.0), name="named")
            self.listed = [samba.SambaTensor(torch.full((4,), 4.0), name="listed")]

        def forward(self, x: Tensor) -> Tensor:
            made = torch.tensor([1.0, 0.0, 0.0, 0.0])
            return x * self.plain + self.named + self.listed[0] + made

    model = Constants()
    traced = trace(model, (torch.randn(2, 4),))
    values = sorted(
        float(s.tensor[0])
        for s in traced.sources
        if s.role is Role.CONSTANT and s.tensor is not None
    )
    assert values == [1.0, 2.0, 3.0, 4.0]
    assert type(model.named) is samba.SambaTensor, "the model is as it was"
    assert type(model.listed[0]) is samba.SambaTensor


def test_tracing_leaves_a_converted_model_alone() -> None:
    model = LogReg()
    samba.from_torch_model_(model)
    before = {n: (type(p), p.detach().clone()) for n, p in model.named_parameters()}
    trace(model, (torch.randn(2, 4), torch.tensor([0, 1])))
    for name, parameter in model.named_parameters():
        assert type(parameter) is before[name][0]
        assert torch.equal(parameter.torch(), samba.to_torch(before[name][1]))


def test_eager_lstm_still_works_after_a_trace() -> None:
    lstm = nn.LSTM(3, 4)
    x = torch.randn(5, 2, 3)
    want = lstm(x)[0].detach()
    trace(lstm, (x,))
    torch.testing.assert_close(lstm(x)[0].detach(), want, rtol=0, atol=0)


def test_tied_weights_are_one_source() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.embed(ids))

    traced = trace(Tied(), (torch.tensor([1, 2]),))
    assert source_names(traced, Role.WEIGHT) == ["tied__embed__weight"]


def test_buffer_updates_are_reported() -> None:
    traced = trace(nn.BatchNorm2d(3), (torch.randn(2, 3, 4, 4),))
    updated = [old for _, old in traced.updates]
    names = {s.value: s.name for s in traced.sources}
    assert sorted(names[v] for v in updated) == [
        "batchnorm2d__num_batches_tracked",
        "batchnorm2d__running_mean",
        "batchnorm2d__running_var",
    ]


def test_dropout_rate_is_an_argin_and_the_seed_advances_once() -> None:
    model = nn.Sequential(nn.Dropout(0.25), nn.Linear(4, 4), nn.Dropout(0.5))
    traced = trace(model, (torch.randn(2, 4),))
    rates = {s.name: s.default for s in traced.sources if s.role is Role.ARGIN}
    assert rates == {"sequential__0__dropout__p": 0.25, "sequential__2__dropout__p": 0.5}
    assert [n.op for n in traced.nodes].count("samba.next_seed") == 1
    drops = [dict(n.kwargs) for n in traced.nodes if n.op == "aten.native_dropout.default"]
    assert [d["stream"] for d in drops] == [0, 1]
    assert all(isinstance(d["seed"], Ref) for d in drops)


def test_inference_traces_in_evaluation_mode_and_restores_it() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(4))
    model[0].eval()
    traced = trace(model, (torch.randn(2, 4),), inference=True)
    assert not traced.updates
    assert not any(s.requires_grad for s in traced.sources)
    assert model.training and model[1].training and not model[0].training


def test_five_unsupported_operations_are_one_error_with_all_their_lines() -> None:
    class Five(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            a = torch.linalg.ldl_factor_ex(x)[0].sum()
            b = torch.linalg.eigvals(x).real.sum()
            c = torch.masked_select(x, x > 0).sum()
            d = torch.unique(x).sum()
            e = torch.nonzero(x).sum()
            return a + b + c + d + e + torch.linalg.ldl_factor_ex(x.exp())[0].sum()

    with pytest.raises(UnsupportedOps) as info:
        trace(Five(), (torch.randn(3, 3),))
    source, first = inspect.getsourcelines(Five.forward)
    lines = {op.name.split(".")[1].strip("_"): op.lines for op in info.value.ops}
    expected = {
        "linalg_ldl_factor_ex": "ldl_factor_ex",
        "linalg_eig": "eigvals",
        "masked_select": "masked_select",
        "unique2": "unique",
        "nonzero": "nonzero",
    }
    assert lines.keys() == expected.keys()
    for name, text in expected.items():
        numbers = [first + i for i, line in enumerate(source) if f".{text}(" in line]
        assert lines[name] == tuple(f"{__file__}:{number}" for number in numbers)
        assert all(line in str(info.value) for line in lines[name])
    assert [op.count for op in info.value.ops if "ldl" in op.name] == [2]
    assert "5 operation(s) have no lowering" in str(info.value)


@pytest.mark.parametrize(
    ("mode", "antialias"),
    [
        ("bicubic", False),
        pytest.param("bilinear", True, marks=pytest.mark.slow),
        pytest.param("bilinear", False, marks=pytest.mark.slow),
        pytest.param("bicubic", True, marks=pytest.mark.slow),
    ],
)
def test_bytes_that_torch_interpolates_in_fixed_point_are_refused(
    mode: str, antialias: bool
) -> None:
    class Resized(nn.Module):
        def __init__(self, size: tuple[int, int]) -> None:
            super().__init__()
            self.size = size

        def forward(self, x: Tensor) -> Tensor:
            return F.interpolate(x, self.size, mode=mode, antialias=antialias)  # resizes

    image = torch.randint(0, 256, (1, 3, 5, 7), dtype=torch.uint8)
    with pytest.raises(UnsupportedOps, match=r"fixed point: interpolate x\.float\(\)") as caught:
        trace(Resized((8, 9)), (image,))
    assert line_of(__file__, "resizes") in str(caught.value)
    trace(Resized((5, 7)), (image,))  # a copy
    trace(Resized((8, 9)), (image.float(),))


@pytest.mark.parametrize("enforce_sorted", [True, False])
def test_packed_sequences_are_refused_with_the_line_and_what_to_do(enforce_sorted: bool) -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 3, batch_first=True)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            pack = nn.utils.rnn.pack_padded_sequence
            packed = pack(x, lengths, batch_first=True, enforce_sorted=enforce_sorted)
            return self.lstm(packed)[1][0]

    with pytest.raises(DataDependentBranch, match="packed sequence") as info:
        trace(Packed(), (torch.randn(2, 5, 4), torch.tensor([5, 2])))
    source, first = inspect.getsourcelines(Packed.forward)
    number = first + next(i for i, line in enumerate(source) if "= pack(" in line)
    assert info.value.where == f"{__file__}:{number}"
    assert "torch.arange(steps) < lengths[:, None]" in info.value.hint
    assert "<= 0" not in str(info.value)


def test_shape_error_keeps_torchs_text_and_names_the_module() -> None:
    class Inner(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a + b

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.inner(a, b)

    with pytest.raises(ShapeMismatch) as info:
        trace(Outer(), (torch.randn(2, 12), torch.randn(2, 14)))
    text = str(info.value)
    assert "The size of tensor a (12) must match the size of tensor b (14)" in text
    assert "Outer.inner" in text
    assert isinstance(info.value, RuntimeError)


def test_outputs_must_be_tensors() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> object:
            return object()

    with pytest.raises(TraceError):
        trace(Odd(), (torch.randn(3),))


def test_mixed_precision_that_eager_torch_refuses() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.conv = nn.Linear(4, 4), nn.Conv2d(1, 1, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(self.fc(x)[None, None].bfloat16()) @ x.float()

    model = Mixed()
    x = torch.randn(4, 4).bfloat16()
    with pytest.raises(RuntimeError):
        model(x)
    traced = trace(model, (x,))
    out = traced.values[traced.outputs[0].value]
    assert out.dtype.name == "FLOAT32"


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.uint8])
def test_narrow_labels_are_widened(dtype: torch.dtype) -> None:
    labels = torch.tensor([0, 2], dtype=dtype)
    traced = trace(LogReg(), (torch.randn(2, 4), labels))
    assert traced.values[traced.inputs[1]].dtype.name == str(dtype).removeprefix("torch.").upper()


def test_numpy_attributes_are_constants() -> None:
    class Numpy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = np.full((4,), 2.0, np.float32)

        def forward(self, x: Tensor) -> Tensor:
            return x * torch.from_numpy(self.scale)

    traced = trace(Numpy(), (torch.randn(2, 4),))
    assert [s.role for s in traced.sources].count(Role.CONSTANT) == 1


def test_distributions_do_not_branch_on_their_arguments() -> None:
    class Likelihood(nn.Module):
        def forward(self, mean: Tensor, x: Tensor) -> Tensor:
            return -torch.distributions.Normal(mean, mean.exp()).log_prob(x).mean()

    before = torch.distributions.Distribution._validate_args
    trace(Likelihood(), (torch.randn(3), torch.randn(3)))
    assert torch.distributions.Distribution._validate_args is before


def test_checks_of_data_are_left_out() -> None:
    class Checked(nn.Module):
        def forward(self, x: Tensor, at: Tensor) -> Tensor:
            torch._check_tensor_all(at < 4)
            torch._check(at.max().item() < 4)
            return x.masked_scatter(at > 1, x * 2)

    traced = trace(Checked(), (torch.randn(4), torch.tensor([0, 1, 2, 3])))
    assert [node.op for node in traced.nodes] == [
        "aten.gt.Scalar",
        "aten.mul.Tensor",
        "aten.masked_scatter.default",
    ]


def test_a_number_taken_out_of_a_tensor_is_refused() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x.max().item()

    with pytest.raises(
        UnsupportedOps, match=r"takes a number out .*, x \* t in place of x \* t.item"
    ):
        trace(Scaled(), torch.randn(4))
