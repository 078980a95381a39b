"""Kernels against torch and against one another, and the rule that chooses among them."""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.kernels import proof, rules
from emulator.kernels.choice import applicable
from emulator.kernels.conv_by_onednn import convolve_onednn
from emulator.kernels.convolutions import CANDIDATES, convolve, weight_gradient
from emulator.kernels.problems import Convolution, Part, Product
from emulator.kernels.products import CANDIDATES as PRODUCTS
from emulator.kernels.products import product
from emulator.kernels.row_products import Spec
from emulator.kernels.rules import (
    PLAIN,
    Measured,
    Rule,
    chosen_by,
    kernels_for,
    parse_rule,
    present_rule,
    rule_for,
    rule_named,
    rule_names,
    rule_text,
)
from emulator.kernels.tap_sums import weight_gradient_by_tap_sums
from emulator.kernels.windows import Window
from emulator.processor import Processor, described, processor

ROOT = Path(__file__).parents[2]
_SIZE = st.integers(1, 9)


def _random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _bound(terms: int) -> float:
    """Of a float32 sum of so many products of normal numbers, added in any order."""
    return 4e-7 * (4 + terms)


@given(
    m=_SIZE, k=_SIZE, n=_SIZE, batch=st.integers(1, 3), form=st.integers(0, 3), nan=st.booleans()
)
@settings(max_examples=12, deadline=None)
def test_products_agree(m: int, k: int, n: int, batch: int, form: int, nan: bool) -> None:
    left, right = ("mk", "km")[form & 1], ("kn", "nk")[form >> 1]
    sizes = {"b": batch, "m": m, "k": k, "n": n}
    a = _random(0, batch, *(sizes[c] for c in left))
    b = _random(1, batch, *(sizes[c] for c in right))
    if nan:
        a.reshape(-1)[0], b.reshape(-1)[-1] = np.nan, np.inf
    spec = f"b{left},b{right}->bmn"
    wanted = torch.einsum(spec, torch.from_numpy(a), torch.from_numpy(b)).numpy()
    problem = Product(
        dtype="float32",
        turned_a=bool(form & 1),
        turned_b=bool(form >> 1),
        batch=batch,
        m=m,
        k=k,
        n=n,
    )
    for candidate in applicable(problem, PRODUCTS):
        run = jax.jit(lambda a, b, run=candidate.run: run(Spec.of(spec), a, b))
        np.testing.assert_allclose(
            run(a, b), wanted, rtol=1e-6, atol=_bound(k), err_msg=candidate.name
        )


@pytest.mark.parametrize("shape", [(1, 3, 2), (5, 7, 4), (64, 33, 17)])
@pytest.mark.parametrize("special", [False, True])
def test_narrow_products_with_bias_agree(shape: tuple[int, int, int], special: bool) -> None:
    """Against torch in float64 on the same operands: one rounding, NaN and infinity in place."""
    m, k, n = shape
    a, b, bias = (
        torch.from_numpy(x).bfloat16() for x in (_random(0, m, k), _random(1, n, k), _random(2, n))
    )
    if special:
        a[0, 0], b[-1, -1], bias[n // 2] = math.nan, math.inf, -math.inf
    wanted = torch.nn.functional.linear(a.double(), b.double(), bias.double()).float()
    problem = Product(
        dtype="bfloat16", turned_a=False, turned_b=True, batch=1, m=m, k=k, n=n
    )  # fmt: skip
    arrays = [jnp.asarray(t.float().numpy(), jnp.bfloat16) for t in (a, b, bias)]
    for candidate in applicable(problem, PRODUCTS):
        run = jax.jit(
            lambda a, b, bias, run=candidate.run: run(
                Spec.of("ni,oi->no"), a, b, jnp.bfloat16, bias
            )
        )
        got = run(*arrays)
        assert got.dtype == jnp.bfloat16
        np.testing.assert_allclose(
            np.asarray(got, np.float32), wanted, rtol=2**-8, atol=2**-8 * _bound(k),
            err_msg=candidate.name,
        )  # fmt: skip


def test_a_wrong_product_is_noticed() -> None:
    """The bound bites: one rounding to bfloat16 is far outside of it."""
    a, b = _random(0, 8, 8), _random(1, 8, 8)
    rounded = np.asarray(jnp.asarray(a, jnp.bfloat16), np.float32) @ b
    assert np.max(np.abs(rounded - a @ b)) > 10 * _bound(8)


@st.composite
def _convolutions(draw: st.DrawFn) -> tuple[Any, ...]:
    n = draw(st.integers(1, 2))
    groups, c, o = draw(st.sampled_from([(1, 2, 3), (1, 1, 4), (2, 2, 1), (3, 1, 1), (3, 1, 2)]))
    each = [
        (draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 2)),
         draw(st.integers(0, 2)), draw(st.integers(5, 8)))
        for _ in range(n)
    ]  # fmt: skip
    return n, groups, c, o, *zip(*each, strict=True)


@given(
    images=st.integers(1, 35), groups=st.integers(2, 5), each=st.integers(1, 2),
    kernel=st.integers(1, 4), stride=st.integers(1, 3), dilation=st.integers(1, 2),
    low=st.integers(-1, 3), high=st.integers(-1, 2), bad=st.sampled_from([1.0, math.nan, math.inf]),
    narrow=st.booleans(),
)  # fmt: skip
@settings(max_examples=8, deadline=None)
def test_depthwise_kernel_gradients(
    images: int, groups: int, each: int, kernel: int, stride: int, dilation: int, low: int,
    high: int, bad: float, narrow: bool,
) -> None:  # fmt: skip
    """Of any number of images, with uneven and negative padding: sums by tap against torch."""
    out = (7 + low + high - dilation * (kernel - 1) - 1) // stride + 1
    if out < 1:
        return
    dtype = torch.bfloat16 if narrow else torch.float32
    x = torch.from_numpy(_random(0, images, groups, 7)).to(dtype)
    x[0, 0, 3] = bad
    w = torch.zeros(groups * each, 1, kernel, requires_grad=True)
    y = torch.conv1d(
        torch.nn.functional.pad(x.float(), (low, high)), w, None, stride, 0, dilation, groups
    )
    g = torch.from_numpy(_random(1, *y.shape)).to(dtype)
    (wanted,) = torch.autograd.grad(y, w, g.float())
    window = Window(
        kernel=(kernel,), stride=(stride,), dilation=(dilation,), low=(low,), high=(high,),
        out=(out,),
    )  # fmt: skip
    jx, jg = (jnp.asarray(t.float().numpy(), str(dtype).split(".")[1]) for t in (x, g))
    got = weight_gradient_by_tap_sums(jx, jg, window, groups, tuple(w.shape))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=_bound(images * out))


@given(drawn=_convolutions(), nan=st.booleans())
@settings(max_examples=8, deadline=None)
def test_convolutions_agree(drawn: tuple[Any, ...], nan: bool) -> None:
    n, groups, c, o, kernel, stride, dilation, padding, size = drawn
    x = torch.from_numpy(_random(0, 2, groups * c, *size)).requires_grad_()
    w = torch.from_numpy(_random(1, groups * o, c, *kernel)).requires_grad_()
    if nan:
        x.data.view(-1)[0] = math.nan
    torch_conv = (torch.conv1d, torch.conv2d)[n - 1]
    y = torch_conv(x, w, None, stride, padding, dilation, groups)
    g = torch.from_numpy(_random(2, *y.shape))
    dx, dw = torch.autograd.grad(y, (x, w), g)
    window = Window(
        kernel=kernel, stride=stride, dilation=dilation, low=padding, high=padding,
        out=tuple(y.shape[2:]),
    )  # fmt: skip
    jx, jw, jg = (jnp.asarray(t.detach().numpy()) for t in (x, w, g))
    cases = {
        Part.FORWARD: (y, (jx, jw), (window, groups), c * math.prod(kernel)),
        Part.INPUT_GRADIENT: (dx, (jg, jw), (window, groups, size), o * math.prod(kernel)),
        Part.WEIGHT_GRADIENT: (dw, (jx, jg), (window, groups, tuple(w.shape)), 2 * math.prod(size)),
    }
    for part, (wanted, arrays, rest, terms) in cases.items():
        problem = Convolution(
            part=part, dtype="float32", batch=2, channels=groups * c, features=groups * o,
            groups=groups, size=size, out=window.out, kernel=kernel, stride=stride,
            dilation=dilation, low=padding,
        )  # fmt: skip
        for candidate in applicable(problem, CANDIDATES[part]):
            run = jax.jit(lambda a, b, run=candidate.run, rest=rest: run(a, b, *rest))
            np.testing.assert_allclose(
                run(*arrays), wanted.detach(), rtol=1e-6, atol=_bound(terms),
                err_msg=f"{part} {candidate.name}",
            )  # fmt: skip


@pytest.mark.parametrize(("images", "windows"), [(1, False), (32, True)])
def test_small_kernel_gradients_are_no_products_of_windows(images: int, windows: bool) -> None:
    """Whatever was measured: alone they are faster, in a step they are not."""
    window = Window(
        kernel=(5, 5), stride=(1, 1), dilation=(1, 1), low=(0, 0), high=(0, 0), out=(8, 8)
    )
    seen = Measured(
        sizes=(images, 64, 6, 16, 1, 25), times={"xla": 60.0, "gemm": 20.0, "onednn taps": 90.0}
    )
    rule = Rule(name="mine", points={"convolution 2d weight gradient float32 3": (seen,)})
    x, g = jnp.zeros((images, 6, 12, 12)), jnp.zeros((images, 16, 8, 8))
    with chosen_by(rule):
        run: Any = jax.jit(lambda x, g: weight_gradient(x, g, window, 1, (16, 6, 5, 5)))
        text = run.lower(x, g).as_text()
    assert ("stablehlo.convolution" not in text) == windows


_POINT = Measured(sizes=(1, 8, 8, 8), times={"xla": 20.0, "onednn": 10.0})
_ONEDNN = Rule(name="mine", points={"product float32 nn": (_POINT,)})


def _text() -> str:
    run = jax.jit(lambda a, b: product("ij,jk->ik", a, b))
    return run.lower(np.ones((8, 8), np.float32), np.ones((8, 8), np.float32)).as_text()


@pytest.mark.skipif(
    not proof.onednn_is_good(proof.Call.PRODUCT, "float32"),
    reason="jaxlib's oneDNN has no products here, or it is off",
)
def test_the_rule_chooses() -> None:
    with chosen_by(_ONEDNN):
        assert "__onednn$matmul" in _text()
        with kernels_for("cuda"):
            assert present_rule() is PLAIN
            assert "custom_call" not in _text()
    with chosen_by(PLAIN):
        assert "custom_call" not in _text()


def test_other_platforms_get_what_jax_has() -> None:
    """Also where a rule has chosen oneDNN: the primitive itself knows the platform."""
    with chosen_by(_ONEDNN):
        run = jax.jit(lambda a, b: product("ij,jk->ik", a, b))
        traced = run.trace(np.ones((8, 8), np.float32), np.ones((8, 8), np.float32))
        assert "custom_call" not in traced.lower(lowering_platforms=("cuda",)).as_text()


def test_far_shapes_and_small_gains_take_the_plain_one() -> None:
    def choose(m: int, times: dict[str, float]) -> str:
        point = Measured(sizes=(1, 8, 8, 8), times=times)
        rule = Rule(name="mine", points={"product float32 nn": (point,)})
        shape = Product(dtype="float32", turned_a=False, turned_b=False, batch=1, m=m, k=8, n=8)
        return rule.choose(shape, ["xla", "onednn"])

    assert choose(16, {"xla": 20.0, "onednn": 10.0}) == "onednn"
    assert choose(8 * 2**4, {"xla": 20.0, "onednn": 10.0}) == "xla"
    assert choose(16, {"xla": 20.0, "onednn": 19.9}) == "xla"


def test_a_rule_is_written_and_read() -> None:
    text = rule_text(_ONEDNN, {"processor": "abacus"})
    assert parse_rule("mine", text) == _ONEDNN
    assert rule_text(parse_rule("mine", text), {"processor": "abacus"}) == text


def test_committed_rules_know_the_candidates() -> None:
    known = {c.name for part in CANDIDATES.values() for c in part} | {c.name for c in PRODUCTS}
    assert rule_names()
    for name in rule_names():
        for points in rule_named(name).points.values():
            assert {n for point in points for n in point.times} <= known


def test_unknown_processors() -> None:
    """One with the extensions of a measured one goes by it, one without by nothing."""

    def of(vendor: str, *isa: str) -> Rule:
        found = Processor(vendor=vendor, family=99, model=0, stepping=0, name="", isa=isa)
        return rule_for(found)

    assert of("other") is PLAIN
    measured = rule_names()[0]
    extension = measured.rpartition("-")[2]
    assert of("other", extension).name.endswith(extension)


def test_what_was_not_measured_goes_by_a_processor_alike(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A rule of some kinds is completed by the fullest one of the same extension."""
    measured = {
        "mine-1-avx2": {"product float32 nn": 1},
        "mine-2-avx2": {"product float32 nn": 2, "product float32 nt": 3},
        "mine-3-avx2": {"convolution": 4, "product float32 nt": 5},
    }
    for name, categories in measured.items():
        points = {
            category: (Measured(sizes=(1, 1, 1, 1), times={"xla": float(time)}),)
            for category, time in categories.items()
        }
        if name == "mine-2-avx2":
            points["more"] = (Measured(sizes=(2,), times={"xla": 1.0}),)
        rule = Rule(name=name, points=points)
        (tmp_path / f"{name}.json").write_text(rule_text(rule, {"processor": name}))
    monkeypatch.setattr(rules, "MEASURED", tmp_path)
    rule_named.cache_clear()
    try:
        mine = Processor(vendor="mine", family=3, model=0, stepping=0, name="", isa=("avx2",))
        found = rule_for(mine)
        other = rule_for(replace(mine, family=9))
    finally:
        rule_named.cache_clear()
    times = {category: points[0].times["xla"] for category, points in found.points.items()}
    assert found.name == "mine-3-avx2"
    assert times == {
        "product float32 nn": 2,
        "product float32 nt": 5,
        "convolution": 4,
        "more": 1,
    }
    assert other.name == "mine-2-avx2"


def test_onednn_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By the environment without a word; where it is wrong, or not there, with one line."""

    def gone() -> float:
        raise RuntimeError("no such call\nand more")

    product_, convolution_ = proof.Call
    monkeypatch.setattr(proof, "has_generated_kernels", lambda call: True)
    try:
        for trial, line in (
            (lambda: 0.5, "values that are off by 0.5"),
            (gone, "no such call)"),
        ):
            proof._is_proved.cache_clear()
            monkeypatch.delenv(proof.ONEDNN_VARIABLE, raising=False)
            monkeypatch.setattr(proof, "_TRIALS", dict.fromkeys(proof._TRIALS, trial))
            with caplog.at_level(logging.WARNING):
                assert not proof.onednn_is_good(product_, "float32")
                assert not proof.onednn_is_good(product_, "bfloat16")
                assert not proof.onednn_is_good(convolution_, "bfloat16")
            assert line in caplog.text
            products_, convolutions_ = caplog.records
            assert "float32 products" in products_.message
            assert "float32 convolutions" in convolutions_.message
            caplog.clear()
        monkeypatch.setenv(proof.ONEDNN_VARIABLE, "0")
        proof._is_proved.cache_clear()
        assert not proof.onednn_is_good(product_, "float32")
        assert not caplog.records
        x, w = jnp.ones((1, 2, 4, 4)), jnp.ones((2, 2, 2, 2))
        window = Window(
            kernel=(2, 2), stride=(1, 1), dilation=(1, 1), low=(0, 0), high=(0, 0), out=(3, 3)
        )
        assert "onednn" not in jax.jit(lambda x, w: convolve(x, w, window, 1)).lower(x, w).as_text()
    finally:
        proof._is_proved.cache_clear()


def _said_by_a_child(code: str, **environ: str) -> str:
    """What a process prints; oneDNN reads its settings once, and what it cannot do ends it."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": str(ROOT), proof.ONEDNN_VARIABLE: "", **environ},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


@pytest.mark.parametrize("ceiling", ["AVX2", "SSE41"])
def test_onednn_of_lesser_processors(ceiling: str) -> None:
    """Its products of bfloat16 end the process there, those of float32 may wait forever."""
    code = """
        import logging
        import jax.numpy as jnp
        from emulator.kernels.products import product
        from emulator.kernels.proof import Call, onednn_is_good
        logging.basicConfig()
        ones = jnp.ones((8, 8), jnp.bfloat16)
        assert float(product("ij,jk->ik", ones, ones)[0, 0]) == 8
        for call in Call:
            print(onednn_is_good(call, "float32"), onednn_is_good(call, "bfloat16"))
    """
    said = _said_by_a_child(code, ONEDNN_MAX_CPU_ISA=ceiling).split()
    assert said[:2] == ["False", "False"]
    assert said[2:] == [str(ceiling == "AVX2" and {"avx2", "fma"} <= set(processor().isa))] * 2


def _kernels_of_drawn_convolutions(ceiling: str, seed: int, count: int) -> set[str]:
    """Names of the kernels that oneDNN took for drawn convolutions and their input gradients."""
    code = f"""
        from tests.emulator.drawn_convolutions import run_by_onednn
        run_by_onednn(seed={seed}, count={count})
    """
    log = _said_by_a_child(code, ONEDNN_MAX_CPU_ISA=ceiling, ONEDNN_VERBOSE="1")
    assert "computed" in log
    fields = [row.split(",") for row in log.splitlines() if row.startswith("onednn_verbose,v1")]
    return {row[6] for row in fields if row[3] == "exec" and row[5] == "convolution"}


@pytest.mark.skipif(
    not proof.onednn_is_good(proof.Call.CONVOLUTION, "float32"),
    reason="jaxlib's oneDNN has no convolutions here, or it is off",
)
@pytest.mark.parametrize(("seed", "count"), [(0, 8), pytest.param(1, 150, marks=pytest.mark.slow)])
@pytest.mark.parametrize("ceiling", ["DEFAULT", "AVX2"])
def test_convolutions_take_generated_kernels(ceiling: str, seed: int, count: int) -> None:
    """Those that oneDNN divides into products (``gemm:jit``) may wait forever under XLA."""
    found = _kernels_of_drawn_convolutions(ceiling, seed, count)
    assert found
    assert {name for name in found if not name.startswith(("br", "jit"))} == set()


@pytest.mark.skipif(
    not proof.onednn_is_good(proof.Call.CONVOLUTION, "float32"),
    reason="jaxlib's oneDNN has no convolutions here, or it is off",
)
@pytest.mark.parametrize("low", [0, 1])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "features"),
    [
        ((6, 3, 4), (4, 1, 2), (1, 1, 3), 32),
        ((8, 2), (2, 1), (1, 3), 64),
        ((2, 4), (2, 3), (2, 2), 17),
    ],
)
def test_one_channel_and_one_position(
    size: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...], features: int,
    low: int,
) -> None:  # fmt: skip
    """With a stride along the axis of one position, oneDNN reads what is not of the data."""
    rest = (0,) * (len(size) - 1)
    out = tuple(
        (n + lo - k) // s + 1
        for n, lo, k, s in zip(size, (low, *rest), kernel, stride, strict=True)
    )
    window = Window(
        kernel=kernel, stride=stride, dilation=(1,) * len(size), low=(low, *rest),
        high=(0, *rest), out=out,
    )  # fmt: skip
    assert out[-1] == 1 < stride[-1]
    x, w = _random(0, 3, 1, *size), _random(1, features, 1, *kernel)
    padded = np.pad(x, [(0, 0), (0, 0), (low, 0), *[(0, 0)] * len(rest)])
    torch_conv = (torch.conv1d, torch.conv2d, torch.conv3d)[len(size) - 1]
    wanted = torch_conv(torch.from_numpy(padded), torch.from_numpy(w), None, stride)
    got = jax.jit(lambda x, w: convolve_onednn(x, w, window, 1))(x, w)
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=_bound(math.prod(kernel)))


def test_onednn_by_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    def has(flags: str, ceiling: str = "") -> tuple[bool, ...]:
        """Whether there are products, and convolutions."""
        monkeypatch.setattr(proof, "processor", lambda: described(f"flags : {flags}"))
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", ceiling)
        return tuple(proof.has_generated_kernels(call) for call in proof.Call)

    every = "avx2 fma avx512f avx512bw avx512dq avx512vl"
    assert has(every) == (True, True)
    assert has(every, "avx512_core") == (True, True)
    assert has(every, "AVX2") == has(every, "AVX2_VNNI_2") == (False, True)
    assert has(every, "AVX") == has(every, "sse41") == (False, False)
    assert has("avx2 fma avx512f") == (False, True)  # Xeon Phi
    assert has("avx2 fma avx_vnni") == (False, True)
    assert has("avx2") == has("") == (False, False)
