"""Lazy parameters: no memory, recorded fills, the same values whatever the threads."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import init

import samba
from pef_schema import read_pef
from samba.errors import ArgumentError, NoHostData
from samba.lazy_param import (
    RNGProviderFactory,
    disable_lazy_param,
    enable_lazy_param,
    lazy_param,
    use_lazy_param,
)
from samba.materialize import materialize
from samba.nn.parameter import SambaParameter
from samba.sambatensor import SambaTensor
from samba.tensor.rng import BLOCK, MultithreadedRNG, RandomSettings
from tests.api.covers import covers
from tests.processes import finished
from tests.samba.llama import Llama


@pytest.fixture(autouse=True)
def normal_mode() -> Iterator[None]:
    yield
    disable_lazy_param()


def lazily(build: Callable[[], nn.Module], **settings: object) -> nn.Module:
    enable_lazy_param(**{"seed": 1, **settings})
    try:
        return build()
    finally:
        disable_lazy_param()


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.torch_tensor() for name, p in model.named_parameters()}


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(5, 4),
    "embedding": lambda: nn.Embedding(6, 3, padding_idx=2),
    "norms": lambda: nn.Sequential(nn.LayerNorm(4), nn.BatchNorm2d(3), nn.GroupNorm(2, 4)),
    "convolutions": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ConvTranspose1d(2, 3, 2)),
    "lstm": lambda: nn.LSTM(4, 3, num_layers=2),
    "attention": lambda: nn.MultiheadAttention(8, 2, kdim=4),
    "transformer": lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, batch_first=True), 2
    ),
    "bilinear": lambda: nn.Bilinear(2, 3, 4),
    "prelu": lambda: nn.PReLU(3),
    "llama": Llama,
}


@covers("samba.session.enable_lazy_param(init_threads)")
@pytest.mark.parametrize("build", LAYERS.values(), ids=LAYERS)
def test_layers_hold_no_memory_and_repeat(build: Callable[[], nn.Module]) -> None:
    model, real = lazily(build), build()
    for (name, p), q in zip(model.named_parameters(), real.parameters(), strict=True):
        assert type(p) is SambaParameter and not p.has_data, name
        assert (p.shape, p.dtype, p.requires_grad) == (q.shape, q.dtype, q.requires_grad)
        assert p.materializer_provided and p.untyped_storage().nbytes() <= 8
    first = values(model)
    for threads in (1, 7):
        again = values(lazily(build, init_threads=threads))
        for name, value in first.items():
            assert type(value) is torch.Tensor and torch.equal(value, again[name]), name
    torch.manual_seed(7)
    assert all(torch.equal(v, first[k]) for k, v in values(model).items())


def test_distributions_are_those_of_the_layers() -> None:
    enable_lazy_param(seed=3)
    linear, embedding, norm = nn.Linear(400, 500), nn.Embedding(300, 400), nn.LayerNorm(9)
    weight = linear.weight.torch_tensor()
    assert weight.abs().max() <= 400**-0.5 and abs(weight.std() * 3**0.5 * 400**0.5 - 1) < 0.02
    table = embedding.weight.torch_tensor()
    assert abs(table.std() - 1) < 0.01 and abs(table.mean()) < 0.01
    assert norm.weight.torch_tensor().tolist() == [1] * 9


INITIALISERS: dict[str, Callable[[torch.Tensor], object]] = {
    "constant": lambda w: init.constant_(w, 3.0),
    "zeros": init.zeros_,
    "eye": lambda w: init.eye_(w),
    "normal": lambda w: init.normal_(w, 1.0, 0.1),
    "truncated": lambda w: init.trunc_normal_(w, std=0.02),
    "xavier": lambda w: init.xavier_normal_(w),
    "kaiming": lambda w: init.kaiming_normal_(w, nonlinearity="relu"),
    "orthogonal": lambda w: init.orthogonal_(w),
    "sparse": lambda w: init.sparse_(w, 0.5),
    "data": lambda w: w.data.normal_(mean=2.0, std=0.1),
    "row": lambda w: w.data[1].fill_(5.0),
    "index": lambda w: w.data.__setitem__((slice(None), 0), 4.0),
    "view": lambda w: w.data.view(-1)[3:7].uniform_(7, 8),
    "transposed": lambda w: w.data.t()[0].fill_(9.0),
    "parts": lambda w: [init.ones_(part) for part in w.data.chunk(2)],
    "operator": lambda w: w.data.mul_(2).add_(1),
    "copy": lambda w: w.data.copy_(torch.arange(20.0).view(4, 5)),
    "masked": lambda w: w.data.masked_fill_(torch.eye(4, 5) > 0, 2.0),
    "exponential": lambda w: w.data.exponential_(),
    "random": lambda w: w.data.random_(0, 10),
}


DETERMINISTIC = {
    *("constant", "zeros", "eye", "row", "index"),
    *("transposed", "parts", "operator", "copy", "masked"),
}


@pytest.mark.parametrize("name", INITIALISERS)
def test_initialisers_are_recorded(name: str) -> None:
    fill = INITIALISERS[name]

    def build(fill: Callable[[torch.Tensor], object] | None = None) -> nn.Module:
        layer = nn.Linear(5, 4)
        if fill is not None:
            with torch.no_grad():
                fill(layer.weight)
        return layer

    layer = lazily(lambda: build(fill))
    assert not layer.weight.has_data
    made, again = values(layer)["weight"], values(lazily(lambda: build(fill)))["weight"]
    assert torch.equal(made, again)
    real = values(lazily(build))["weight"]
    torch.manual_seed(0)
    fill(real)
    if name in DETERMINISTIC:
        assert torch.equal(made, real)
    else:
        # Random: the same place, the same kind of numbers.
        assert ((made - real).abs() < 12).all() and not torch.equal(made, torch.zeros(4, 5))


@pytest.mark.parametrize("name", ["eye_", "trunc_normal_", "orthogonal_", "sparse_"])
def test_initialisers_imported_before_repeat_too(name: str) -> None:
    initialiser = getattr(init, name)
    arguments = (0.5,) if name == "sparse_" else ()
    made = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        enable_lazy_param(seed=1)
        layer = nn.Linear(5, 4)
        initialiser(layer.weight, *arguments)
        made.append(layer.weight.torch_tensor())
        disable_lazy_param()
    if name != "sparse_":  # it asks torch for a permutation
        assert torch.equal(*made)
    if name == "eye_":
        assert torch.equal(made[0], torch.eye(4, 5))


def test_functions_of_torch_are_put_back() -> None:
    before = init.normal_
    with lazy_param():
        assert init.normal_ is not before
    assert init.normal_ is before


def test_orthogonal_is_orthogonal() -> None:
    enable_lazy_param(seed=1)
    layer = nn.Linear(5, 4)
    init.orthogonal_(layer.weight)
    made = layer.weight.torch_tensor()
    torch.testing.assert_close(made @ made.t(), torch.eye(4), atol=1e-6, rtol=0)


def test_values_given_by_the_user_are_kept() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor([1.0, 2.0]))
            self.both = nn.Parameter(self.scale * 3)
            self.register_buffer("mask", torch.eye(2))

    model = lazily(Scale)
    assert values(model)["scale"].tolist() == [1, 2] and values(model)["both"].tolist() == [3, 6]
    assert type(model.mask) is torch.Tensor


def test_ties_and_identity_stay() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weight = nn.Parameter(torch.empty(3, 2))
            self.a, self.b = nn.Linear(2, 3, bias=False), nn.Linear(2, 3, bias=False)
            self.a.weight = weight
            self.b.weight = weight
            init.ones_(weight)

    model = lazily(Tied)
    assert model.a.weight is model.b.weight
    assert values(model)["a.weight"].sum() == 6


def test_what_torch_refuses_is_refused_at_once() -> None:
    layer = lazily(lambda: nn.Linear(5, 4))
    with pytest.raises(RuntimeError, match="broadcast"):
        layer.weight.data.add_(torch.ones(3, 3))
    with pytest.raises(IndexError):
        layer.weight.data[7].fill_(0)
    with pytest.raises(NoHostData, match="materialize_"):
        layer(torch.ones(1, 5))


def test_recorded_tensors_are_taken_as_they_are_now() -> None:
    layer, source = lazily(lambda: nn.Linear(2, 2)), torch.ones(2)
    layer.weight.data[0].copy_(source)
    source.zero_()
    assert values(layer)["weight"][0].tolist() == [1, 1]


def test_a_full_fill_drops_what_came_before() -> None:
    layer = lazily(lambda: nn.Linear(2, 2))
    for _ in range(50):
        init.normal_(layer.weight)
    assert len(layer.weight.materializer.calls) == 1


def test_copies_go_their_own_way() -> None:
    layer = lazily(lambda: nn.Linear(2, 2))
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):  # noqa: S301  # our own bytes
        assert torch.equal(values(other)["weight"], values(layer)["weight"])
        init.zeros_(other.weight)
        assert values(other)["weight"].sum() == 0 != values(layer)["weight"].sum()
    cast = layer.weight.bfloat16()
    cast.data.fill_(1)
    assert cast.torch_tensor().sum() == 4 != values(layer)["weight"].sum()


def test_loading_a_checkpoint_gives_values() -> None:
    source = nn.Linear(3, 2)
    layer = lazily(lambda: nn.Linear(3, 2))
    layer.load_state_dict(source.state_dict())
    assert layer.weight.has_data
    assert torch.equal(layer(torch.ones(1, 3)), source(torch.ones(1, 3)))


@covers("samba.session.enable_lazy_param(fp32_to_bf16_rounding)")
@pytest.mark.parametrize("rounding", ["nearest_even", "truncation"])
def test_casts_round_as_wished(rounding: str) -> None:
    full = values(lazily(lambda: nn.Linear(50, 40)))["weight"]
    layer = lazily(lambda: nn.Linear(50, 40).bfloat16(), fp32_to_bf16_rounding=rounding)
    direct = lazily(lambda: nn.Linear(50, 40, dtype=torch.bfloat16), fp32_to_bf16_rounding=rounding)
    cast = values(layer)["weight"]
    expected = full.bfloat16()
    if rounding == "truncation":
        expected = (full.view(torch.int32) & -65536).view(torch.float32).bfloat16()
        assert not torch.equal(expected, full.bfloat16())
    assert cast.dtype == torch.bfloat16 and torch.equal(cast, expected)
    assert torch.equal(values(direct)["weight"], expected)


def test_materialize_fills_for_a_while() -> None:
    model = lazily(Llama)
    before = values(model)
    with materialize(model) as real:
        assert real is model
        assert all(p.has_data for p in model.parameters())
        assert torch.equal(model.head.weight, before["head.weight"])
        loss, _ = model(torch.ones(1, 4).int(), torch.ones(1, 4).int())
        loss.backward()
        with torch.no_grad():
            model.norm.weight.mul_(2)
    assert not model.head.weight.has_data and model.norm.weight.has_data
    assert values(model)["norm.weight"].sum() == 64


def test_materialize_needs_materializers() -> None:
    layer = nn.Linear(2, 2, device="meta")
    samba.from_torch_model_(layer)
    with pytest.raises(NoHostData), materialize(layer):
        pass
    assert not layer.weight.has_data


def test_modes_nest_and_end() -> None:
    assert not use_lazy_param()
    with lazy_param():
        assert use_lazy_param()
        with lazy_param(quantized=True):
            pass
        assert use_lazy_param() and not nn.Linear(2, 2).weight.has_data
    assert not use_lazy_param() and type(nn.Linear(2, 2).weight) is nn.Parameter
    enable_lazy_param()
    with pytest.raises(KeyError), lazy_param():
        raise KeyError
    assert use_lazy_param()
    disable_lazy_param()
    disable_lazy_param()
    assert type(nn.Linear(2, 2).weight) is nn.Parameter


def test_without_a_seed_torch_decides() -> None:
    def build() -> torch.Tensor:
        with lazy_param():
            return nn.Linear(3, 3).weight.torch_tensor()

    samba.set_seed(5)
    first, second = build(), build()
    samba.set_seed(5)
    assert torch.equal(first, build()) and not torch.equal(first, second)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ArgumentError, match="found 'up', expected 'nearest_even' or 'truncation'"):
        enable_lazy_param(fp32_to_bf16_rounding="up")
    with pytest.raises(ArgumentError, match=r"init_threads=\.\.\.\): found int 0"):
        enable_lazy_param(init_threads=0)
    assert not use_lazy_param()


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float32, torch.bfloat16),
        *(pytest.param(d, marks=pytest.mark.slow) for d in (torch.float16, torch.float64)),
    ],
)
def test_streams_do_not_depend_on_threads(inverse: bool, dtype: torch.dtype) -> None:
    def draw(threads: int) -> torch.Tensor:
        settings = RandomSettings(seed=9, threads=threads, inverse_transform_sampling=inverse)
        rng = MultithreadedRNG(settings, (4,))
        return torch.stack([rng.normal(1.0, 2.0, (2 * BLOCK + 5,), dtype) for _ in range(2)])

    one = draw(1)
    assert all(torch.equal(one, draw(threads)) for threads in (2, 5))
    z = (one.double() - 1) / 2
    # Standard errors at this size: mean 1e-3, variance 1.4e-3, fourth moment 1e-2.
    assert abs(z.mean()) < 5e-3 and abs(z.var() - 1) < 7e-3 and abs((z**4).mean() - 3) < 5e-2
    assert abs((z[0] * z[1]).mean()) < 7e-3
    assert z.isfinite().all()


def test_the_two_ways_of_drawing_differ() -> None:
    def draw(inverse: bool) -> torch.Tensor:
        settings = RandomSettings(seed=9, inverse_transform_sampling=inverse)
        return MultithreadedRNG(settings).normal(shape=(10,))

    assert not torch.equal(draw(False), draw(True))


def test_uniform_numbers_stay_in_bounds() -> None:
    made = MultithreadedRNG(RandomSettings(seed=2)).uniform(-3, 5, (1000, 100))
    assert made.min() >= -3 and made.max() <= 5 and abs(made.mean() - 1) < 0.05


def test_providers_give_streams_for_materializers() -> None:
    def build() -> list[torch.Tensor]:
        enable_lazy_param(seed=8)
        provider, other = (RNGProviderFactory().build_provider() for _ in range(2))
        shared = [provider().normal(0.0, 0.02, (4, 4), dtype=torch.bfloat16) for _ in range(2)]
        return [*shared, other().normal(0.0, 0.02, (4, 4), dtype=torch.bfloat16)]

    first, second = build(), build()
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[0], first[2])


def test_materializers_that_take_random_numbers_repeat_by_name() -> None:
    def make(name: str) -> torch.Tensor:
        tensor = SambaTensor(
            shape=(3,), name=name, materializer=lambda t, rng: rng.normal(0, 1, t.shape)
        )
        return tensor.torch_tensor()

    enable_lazy_param(seed=4)
    a, b = make("a"), make("b")
    enable_lazy_param(seed=4)
    torch.manual_seed(0)
    assert torch.equal(make("b"), b) and torch.equal(make("a"), a) and not torch.equal(a, b)


def _inputs() -> tuple[SambaTensor, SambaTensor]:
    torch.manual_seed(0)
    return samba.randint(64, (2, 8), name="tokens"), samba.randint(64, (2, 8), name="labels")


def test_a_lazy_model_compiles_and_runs_as_a_real_one(tmp_path: Path) -> None:
    programs, inputs, config = [], _inputs(), {"output_folder": str(tmp_path)}
    for model in (Llama(layers=1), lazily(lambda: Llama(layers=1))):
        samba.from_torch_model_(model)
        optimizer = samba.optim.AdamW(model.parameters(), max_grad_norm=1.0)
        pef = samba.session.compile(model, inputs, optimizer, name="m", config_dict=config)
        programs.append(read_pef(pef))
    assert programs[0] == programs[1]
    assert all(not p.has_data for p in model.parameters())
    samba.utils.trace_graph(model, inputs, optimizer, pef=pef)
    assert all(not p.has_data for p in model.parameters())
    passes = {"section_types": ["fwd", "bckwd"]}
    loss, logits = samba.session.run(inputs, model.output_tensors, **passes)
    with materialize(model):
        gold_loss, gold_logits = model(*(t.torch() for t in inputs))
        gold_loss.backward()
        torch.testing.assert_close(loss.torch(), gold_loss.torch().detach(), rtol=1e-6, atol=0)
        torch.testing.assert_close(
            logits.torch(), gold_logits.torch().detach(), rtol=1e-5, atol=1e-6
        )
        weight = model.blocks[0].q.weight
        torch.testing.assert_close(weight.sn_grad, weight.grad, rtol=1e-4, atol=1e-7)


_BILLIONS = """
import sys, time
import samba
from samba.lazy_param import enable_lazy_param
from tests.processes import peak_bytes
from tests.samba import llama
start = time.process_time()
enable_lazy_param(seed=1)
model = llama.Llama(**getattr(llama, sys.argv[2]))
inputs = [samba.randint(32000, (1, 64), name=n) for n in ("tokens", "labels")]
samba.from_torch_model_(model)
optimizer = samba.optim.AdamW(model.parameters(), lr=1e-3, max_grad_norm=1.0)
pef = samba.session.compile(
    model, inputs, optimizer, name="llama", config_dict={"output_folder": sys.argv[1]}
)
print(pef, time.process_time() - start, peak_bytes() >> 10)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "parameters", "limit_seconds", "limit_kilobytes"),
    [("SEVEN_BILLION", 6.7e9, 60, 2_000_000), ("SEVENTY_BILLION", 68e9, 120, 3_000_000)],
)
def test_billions_of_parameters_compile_without_being_made(
    shape: str, parameters: float, limit_seconds: float, limit_kilobytes: int, tmp_path: Path
) -> None:
    done = finished(
        [sys.executable, "-c", _BILLIONS, str(tmp_path), shape],
        cwd=Path(__file__).parents[2],
        check=True,
    )
    pef, seconds, kilobytes = done.stdout.splitlines()[-1].split()
    assert float(seconds) < limit_seconds and int(kilobytes) < limit_kilobytes
    program = read_pef(pef)
    weights = sum(r.nbytes for r in program.regions if r.role.name == "WEIGHT")
    assert weights > 4 * parameters
    structures = len({s.twin for s in program.sections})
    assert structures < len(program.sections) / 4, "equal layers are found"
    assert (
        f"{len(program.sections):,} sections of {structures:,} structures"
        in Path(f"{pef}.log").read_text()
    )


@covers("samba.lazy_param")
@pytest.mark.parametrize("quantized", [{}, {"quantized": True}], ids=["", "quantized"])
def test_the_module_can_be_called_as_its_function(quantized):
    with samba.lazy_param(**quantized):
        assert samba.session.use_static_functional()
        layer = nn.Linear(40, 30)
    assert not samba.session.use_static_functional()
    assert not layer.weight.has_data and nn.Linear(2, 2).weight.numel() == 4


def test_it_is_a_module_all_the_same():
    import sambaflow.samba as aliased
    from sambaflow.samba.lazy_param import lazy_param as function

    module = sys.modules["samba.lazy_param"]
    assert samba.lazy_param is aliased.lazy_param is module
    assert module.lazy_param is function
    with aliased.lazy_param():
        assert not nn.Linear(2, 2).weight.has_data
