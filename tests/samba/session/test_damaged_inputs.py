"""Tensors, containers and numbers of every kind given to a session: torch's answer, or an
error of this project that names what was given, with device and host as they were."""

from __future__ import annotations

import decimal
import fractions
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import samba
from samba.errors import SambaError
from tests.samba.session.test_bad_run import memory, refused
from tests.samba.worlds import DROPOUT, MLP, named

X = torch.arange(20, dtype=torch.float32).reshape(5, 4) / 20
Y = torch.tensor([0, 1, 2, 0, 1])
NAMES = {
    "NUL": "a\0b",
    "surrogate": "a\ud800",
    "newline": "a\nb",
    "escape": "\x1b[31mred",
    "bidirectional": "\u202egpj",
    "long": "n" * 10_000,
}


class Sub(torch.Tensor):
    """A subclass over the same memory."""


class Wrapper(torch.Tensor):
    """A subclass without memory of its own."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError("no operation")


def with_storage(nbytes: int) -> torch.Tensor:
    tensor = X.clone()
    tensor.untyped_storage().resize_(nbytes)
    return tensor


class Hostile:
    """What a script's own class may do where it is asked."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def __float__(self) -> float:
        raise OSError("no number")

    def __bool__(self) -> bool:
        raise ValueError("neither")

    def __eq__(self, other: object) -> bool:
        raise LookupError("no comparison")

    def __index__(self) -> int:
        raise KeyError("no index")

    __hash__ = object.__hash__


READ: dict[str, Callable[[], torch.Tensor]] = {
    "expanded": lambda: X[:1].expand(5, 4),
    "of no stride": lambda: X[0, 0].expand(5, 4),
    "not contiguous": lambda: X.t().contiguous().t(),
    "a window": lambda: torch.arange(40.0).reshape(5, 8)[:, 2:6],
    "negated when it is read": lambda: torch.complex(X, X).conj().imag,
    "with a gradient": lambda: X.clone().requires_grad_(),
    "a result of autograd": lambda: X.clone().requires_grad_() * 2,
    "a subclass": lambda: X.as_subclass(Sub),
    "float8, which is cast": lambda: X.to(torch.float8_e4m3fn),
}
"""Tensors of which torch reads the values, and so do we."""

FOREIGN: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "sparse": (lambda: X.to_sparse(), "a sparse_coo tensor"),
    "sparse rows": (lambda: X.to_sparse_csr(), "a sparse_csr tensor"),
    "meta": (lambda: X.to("meta"), "a tensor on device meta"),
    "quantized": (
        lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8),
        "a quantized tensor",
    ),
    "nested": (lambda: torch.nested.nested_tensor(list(X)), "a nested tensor"),
    "jagged": (
        lambda: torch.nested.nested_tensor(list(X), layout=torch.jagged),
        "a jagged tensor",
    ),
    "of another library": (lambda: X.to_mkldnn(), "a _mkldnn tensor"),
    "fake": (lambda: FakeTensorMode().from_tensor(X), "found FakeTensor"),
    "a wrapper": (lambda: Wrapper(X), "found Wrapper"),
    "freed": (lambda: with_storage(0), "whose memory was freed"),
    "freed in part": (lambda: with_storage(40), "whose memory was freed"),
}
"""Tensors without plain values in host memory."""

QUIET = pytest.mark.filterwarnings(
    "ignore:.*nested tensors:UserWarning", "ignore:.*quantize.*", "ignore:Sparse CSR.*"
)


@pytest.fixture
def scene(pefs):
    scene = pefs.loaded(DROPOUT)
    scene.run((samba.from_torch_tensor(X, name="x"), Y), train=False)
    return scene


@QUIET
def test_what_torch_reads_is_read(scene):
    options = {"section_types": ["fwd"], "train": False}
    for case, make in READ.items():
        tensor = make()
        want = scene.run((tensor.detach().float().clone(), Y), **options)[1]
        assert bool(want.isfinite().all()), case
        by_name = samba.from_torch_tensor(tensor, name="x"), named({"y": Y})[0]
        for given in ((tensor, Y), by_name, {"y": Y, "x": tensor}):
            assert torch.equal(scene.run(given, **options)[1], want), case


@QUIET
def test_what_has_no_plain_values_is_refused_by_name(scene):
    evaluator = samba.session.evaluator(scene.model)
    for case, (make, part) in FOREIGN.items():
        with refused("tensor x", part, "in host memory", case=case):
            scene.run((make(), Y), hyperparam_dict={"lr": 0.9})
        with refused("tensor x", part, case=f"{case} by key"):
            scene.run({"x": make(), "y": Y})
        with refused("second__linear__outputs__0__grad", part, case=f"{case} as grad_of_outputs"):
            scene.run(grad_of_outputs=[None, make()])
        with refused("tensor x", part, case=f"{case} in update_tensor"):
            samba.session.update_tensor("x", make())
        with refused("tensor x", part, case=f"{case} as sn_data"):
            scene.inputs[0].sn_data = make()
        with refused("second__linear__outputs__0__grad", part, case=f"{case} as sn_grad"):
            scene.model.output_tensors[1].sn_grad = make()
        with refused("tensor x", part, case=f"{case} for an evaluator"):
            evaluator.run((make(), Y))


@QUIET
def test_a_named_one_is_refused_where_it_gets_its_name_or_where_it_is_used(scene):
    # Whose memory was cut short is looked for where a tensor is matched; torch never looks.
    for case in FOREIGN.keys() - {"freed in part"}:
        with refused(case=case):
            named_x = samba.from_torch_tensor(FOREIGN[case][0](), name="x")
            scene.run((named_x, named({"y": Y})[0]))


@QUIET
@pytest.mark.parametrize("case", ["sparse", "meta", "fake", "freed"])
def test_inputs_of_a_trace_leave_what_was_loaded(pefs, case):
    scene = pefs.loaded(MLP)
    before, loaded = memory(), samba.session._slot.loaded
    other = pefs.scene(MLP)
    with pytest.raises(SambaError, match=r"\bx\b"):
        other.inputs = (FOREIGN[case][0](), other.inputs[1])
        other.trace()
    assert samba.session._slot.loaded is loaded
    assert all(np.array_equal(a, b) for a, b in zip(memory(), before, strict=True) if b is not None)
    scene.run()


@QUIET
@pytest.mark.parametrize("case", ["sparse", "meta", "quantized"])
def test_weights_and_states_that_cannot_be_read(pefs, case):
    scene = pefs.loaded(MLP)
    scene.run()
    weight = scene.model.first.weight
    make, part = FOREIGN[case]
    with refused("momentum_buffer of the optimizer", part, case="state"):
        samba.session.to_cpu(scene.model, scene.optimizer)
        scene.optimizer.state[weight]["momentum_buffer"] = make()
        samba.session.to_rdu(scene.model, scene.optimizer)


# -- containers --------------------------------------------------------------------------------


def holding_itself() -> list[Any]:
    items: list[Any] = [X, Y]
    items.append(items)
    return items


def dict_holding_itself() -> dict[str, Any]:
    items: dict[str, Any] = {"x": X, "y": Y}
    items["z"] = [items]
    return items


def nested(depth: int, inner: Any) -> Any:
    for _ in range(depth):
        inner = [inner]
    return inner


CONTAINERS: dict[str, tuple[Callable[[], Any], str]] = {
    "a list that holds itself": (holding_itself, "a list that holds itself"),
    "a dict that holds itself": (dict_holding_itself, "that holds itself"),
    "lists in lists": (lambda: [nested(100_000, X), Y], "nested more than 128 deep"),
    "a generator": (lambda: (t for t in (X, Y)), "found generator, expected a tensor"),
    "an endless generator": (lambda: itertools.repeat(X), "found repeat, expected a tensor"),
    "a set": (lambda: {1, 2}, "found set, expected a tensor"),
    "a text": (lambda: "x", "found str, expected a tensor"),
    "200,000 tensors": (lambda: [X] * 200_000, "one tensor too many"),
    "hostile": (lambda: [Hostile(), Y], "Hostile"),
    "keys that are not text": (lambda: {1: X, 2: Y}, "a tensor named"),
    "a tuple as key": (lambda: {("x",): X}, "a tensor named ('x',)"),
    **{
        f"a key with {what}": (lambda key=key: {key: X, "y": Y}, "a tensor named")
        for what, key in NAMES.items()
    },
}


def test_containers(scene):
    for case, (make, part) in CONTAINERS.items():
        with refused("input", part, case=case) as caught:
            scene.run(make(), hyperparam_dict={"lr": 0.9})
        assert caught.text.isprintable() and len(caught.text) < 2500, case


def test_containers_for_a_trace(tmp_path):
    scene, config = MLP.build(), {"output_folder": str(tmp_path)}
    itself = "a list that holds itself"
    for given, part in (
        (holding_itself(), itself),
        ({"x": X, "y": holding_itself()}, itself),
        ({"x": X, "y": nested(500, Y)}, "nested more than 128 deep"),
    ):
        with pytest.raises(SambaError, match=part):
            samba.session.compile(scene.model, given, None, config_dict=config)
    assert not list(tmp_path.iterdir())


# -- numbers -----------------------------------------------------------------------------------

NO_NUMBERS: dict[str, Any] = {
    "a whole number of 400 digits": 10**400,
    "below zero with 400 digits": -(10**400),
    "5,000 digits": 10**5000,
    "a large fraction": fractions.Fraction(10**400, 3),
    "a large decimal": decimal.Decimal("1e400"),
    "a signalling decimal": decimal.Decimal("sNaN"),
    "a complex number": 1j,
    "no number": float("nan"),
    "infinite": float("inf"),
    "below zero": -1,
    "beyond float32": 1e39,
    "numpy's infinity": np.float32("inf"),
    "numpy's long": np.longdouble("1e4000"),
    "numpy's complex": np.complex64(1),
    "an array of an object": np.array(10**400, dtype=object),
    "an array of a text": np.array("0.1"),
    "two numbers": np.ones(2),
    "a text": "0.1",
    "bytes": b"0.1",
    "a bytearray": bytearray(b"0.1"),
    "None": None,
    "a list": [0.1],
    "lists in lists": nested(100_000, 0.1),
    "hostile": Hostile(),
    "a tensor without values": torch.ones((), device="meta"),
    "a complex tensor": torch.tensor(1j),
    "two tensors": torch.ones(2),
}


def test_hyperparameters_that_are_no_numbers(scene):
    """The second time a call repeats what the first prepared."""
    for key, case in itertools.product(("lr", "mlp__seed", "p"), NO_NUMBERS):
        parts = f"hyperparam_dict['{key}']", "expected", "no hyperparameter was"
        for _ in range(2):
            with refused(*parts, case=case):
                scene.run(hyperparam_dict={"momentum": 0.5, key: NO_NUMBERS[case]})


@pytest.mark.parametrize("value", [10**400, float("nan"), "0.1", None, Hostile()])
def test_numbers_of_an_optimizer(scene, value):
    with refused("lr", "expected a finite number", case=str(type(value))):
        scene.optimizer.param_groups[0]["lr"] = value
        scene.run()


def test_keys_of_every_kind_are_told_escaped(scene, caplog):
    keys = [*NAMES.values(), 1, None, ("lr",), "", Hostile(), torch.ones(3)]
    for key in keys:
        scene.run(hyperparam_dict={key: 1.0})
    told = [r.getMessage() for r in caplog.records if r.name == "samba"]
    assert len(told) == len(keys)
    assert all(text.isprintable() and len(text) < 300 for text in told)


OTHER_ARGUMENTS: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "outputs that are a number": (lambda: {"output_tensors": 3}, "output_tensors"),
    "outputs without end": (
        lambda: {"output_tensors": itertools.repeat("x")},
        "more than 1000000 entries",
    ),
    "outputs that are numbers": (lambda: {"output_tensors": [3]}, "output_tensors[0]"),
    "hostile outputs": (lambda: {"output_tensors": Hostile()}, "output_tensors"),
    "types that are a number": (lambda: {"section_types": 3}, "section_types"),
    "types without end": (lambda: {"section_types": itertools.repeat("fwd")}, "section_types"),
    "hostile types": (lambda: {"section_types": [Hostile()]}, "section_types"),
    "ids that hold themselves": (
        lambda: {"section_ids": (lambda ids: ids.append(ids) or ids)([0])},
        "a list that holds itself",
    ),
    "ids in lists": (lambda: {"section_ids": nested(100_000, 0)}, "nested more than 128 deep"),
    "ids without end": (lambda: {"section_ids": itertools.count()}, "section_ids"),
    "an id of 5,000 digits": (lambda: {"section_ids": [10**5000]}, "section_ids"),
    "100,000 ids": (lambda: {"section_ids": [77] * 100_000}, "and 99,992 more"),
    "hostile ids": (lambda: {"section_ids": [Hostile()]}, "section_ids"),
    "calls that are tensors": (lambda: {"run_from_call_id": torch.ones(2)}, "run_from_call_id"),
    "hostile calls": (lambda: {"run_until_call_id": Hostile()}, "run_until_call_id"),
    "a list as graph": (lambda: {"graph_name": ["mlp"]}, "graph_name"),
    "hostile graph": (lambda: {"graph_name": Hostile()}, "graph_name"),
    "train that is a tensor": (lambda: {"train": torch.ones(2)}, "train"),
    "hostile train": (lambda: {"train": Hostile()}, "train"),
    "gradients that are a number": (lambda: {"grad_of_outputs": 3}, "grad_of_outputs"),
    "gradients without end": (
        lambda: {"grad_of_outputs": itertools.repeat(None)},
        "grad_of_outputs",
    ),
    "20,000 keywords": (lambda: {f"k{n}": 1 for n in range(20_000)}, "and 19,980 more"),
    **{
        f"{argument} with {what}": (lambda a=argument, n=name, f=form: {a: f(n)}, argument)
        for what, name in NAMES.items()
        for argument, form in {
            "output_tensors": lambda n: [n],
            "section_types": lambda n: [n],
            "graph_name": lambda n: n,
            "data_parallel_mode": lambda n: n,
        }.items()
    },
    **{f"keyword with {what}": (lambda n=name: {n: 1}, "keyword") for what, name in NAMES.items()},
}


def test_other_arguments(scene):
    outputs = scene.model.output_tensors
    for case, (make, part) in OTHER_ARGUMENTS.items():
        scene.run(run_until_call_id=0)
        for _ in range(2):
            with refused(part, case=case) as caught:
                samba.session.run(scene.inputs, **({"output_tensors": outputs} | make()))
            assert caught.text.isprintable() and len(caught.text) < 2500, caught.text
