"""Products are whole and random numbers equal on every platform, as StableHLO shows without one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emulator.dtypes import TO_NUMPY
from emulator.kernels import products
from emulator.native.library import without_native
from emulator.op_facts.names import NEXT_SEED
from emulator.ops._contractions import contract
from emulator.ops.random import normal, uniform, uniform_bits
from emulator.ops.registry import load_ops
from emulator.plans.steps import all_steps
from emulator.plans.xla_options import xla_options
from emulator.trace_settings import full_products, wide_types
from pef_schema.program import DType
from samba.tracer.errors import TraceError
from tests.emulator.platforms.products import (
    HIGHEST,
    custom_calls,
    in_stablehlo,
    inexact,
    of_jaxpr,
    operations,
)
from tests.models.test_zoo import build, load, made
from tests.models.zoo import ZOO
from tests.opinfo.call import Call
from tests.opinfo.catalog import load_entries
from tests.opinfo.check import UNSUPPORTED
from tests.opinfo.compiled import Compiled
from tests.opinfo.exceptions import OUT_OF_SCOPE, function_of, in_scope
from tests.opinfo.samples import choose, list_samples

SAID = "[#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]"
OF_THE_CPU = ("lapack", "onednn", "eigen", "ynn", "xnn", "cpu", "emulator_")
"""What names of calls hold that only the CPU's executables can make."""

SLOW = ("mlp", "resnet", "gpt", "vit", "bert", "scaled")
"""Their products are those of the others."""

ENTRIES = (
    *("addbmm", "tensordot", "linalg.svd", "nn.functional.scaled_dot_product_attention"),
    *("nn.functional.conv_transpose2d", "matrix_exp"),
)
"""Operators whose products are made in different ways: by us, by jax, in loops, in solvers; the
slow test below tries all operators."""


def assert_exact(lowered: Any) -> int:
    """No product of float32 is left to the platform; how many products there are."""
    products = in_stablehlo(lowered)
    assert not [p for p in products if p[1] == "f32" and p[2] != SAID]
    return len(products)


def assert_none_of_the_cpus(lowered: Any) -> None:
    """Nothing is called that only XLA:CPU has."""
    calls = custom_calls(lowered)
    assert not [name for name in calls if any(part in name.lower() for part in OF_THE_CPU)]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in ZOO]
)
def test_every_model_of_the_zoo_lowers_for_cuda_as_for_the_cpu(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same text but for what is called: the same integer hash draws the same random bits, the
    same types are kept, the same buffers are donated."""
    _, _, traced = made(name)
    program = build(traced, "o3")
    device = load(program, traced)
    steps = all_steps(program, 0)
    for_cuda, for_cpu = device.lower(steps, platform="cuda"), device.lower(steps)
    assert assert_exact(for_cuda) > 3
    assert assert_exact(for_cpu) > 3
    assert_none_of_the_cpus(for_cuda)
    assert not custom_calls(for_cuda)
    given_away = for_cuda.as_text().count("tf.aliasing_output")
    assert given_away == for_cpu.as_text().count("tf.aliasing_output") > 0
    # Native kernels are called on the CPU alone, and factors are copied for it alone.
    monkeypatch.setattr(products, "_gains_by_rows", lambda *_: False)
    with without_native():
        plain = device.lower(steps)
    if not custom_calls(plain):
        assert for_cuda.as_text() == plain.as_text()


def lower_entry(name: str) -> Any:
    """An operator of torch's database with its gradients, lowered for cuda; None if torch or this
    project has no such call."""
    (entry,) = [e for e in load_entries() if e.name == name]
    samples = list_samples(entry, "float32", gradients=entry.info.supports_autograd)
    groups = choose([s for s in samples if in_scope(name, s)], 1)
    if not groups:
        return None
    sample = groups[0][0]
    compiled = Compiled(
        Call(function_of(entry, sample), sample), sample.tensors, through_file=False
    )
    return compiled.device.lower(all_steps(compiled.program, 0), platform="cuda")


@pytest.mark.parametrize("name", ENTRIES)
def test_products_of_operators(name: str) -> None:
    lowered = lower_entry(name)
    assert assert_exact(lowered) > 0
    assert_none_of_the_cpus(lowered)


def trace(function: Callable[..., Any], *shapes: Sequence[int], dtype: Any = np.float32) -> Any:
    return jax.jit(function).trace(*[jax.ShapeDtypeStruct(tuple(s), dtype) for s in shapes])


def test_without_it_the_platform_would_decide() -> None:
    assert inexact(trace(jnp.matmul, (2, 3), (3, 4)).jaxpr)
    conv = load_ops()["aten.conv2d.default"].lower
    assert inexact(trace(conv, (1, 20, 8, 8), (4, 20, 3, 3)).jaxpr)
    with full_products():
        assert not inexact(trace(jnp.matmul, (2, 3), (3, 4)).jaxpr)
        assert not inexact(trace(conv, (1, 20, 8, 8), (4, 20, 3, 3)).jaxpr)
    assert inexact(trace(jnp.matmul, (2, 3), (3, 4)).jaxpr)


def test_products_in_loops_and_branches_are_looked_at() -> None:
    def loop(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, _: (jnp.where(True, c @ x, c), None), x, None, length=3)[0]

    assert len(inexact(trace(loop, (3, 3)).jaxpr)) == 1


def test_who_asks_for_less_gets_less() -> None:
    with jax.default_matmul_precision("tensorfloat32"), full_products():
        (product,) = of_jaxpr(trace(jnp.matmul, (2, 3), (3, 4)).jaxpr)
    assert product.params["precision"] != HIGHEST


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16])
def test_products_of_16_bits_are_left_as_they_are(dtype: DType) -> None:
    with full_products():
        found = trace(
            lambda a, b: contract("ij,jk->ik", a, b), (2, 3), (3, 4), dtype=TO_NUMPY[dtype]
        )
    (product,) = in_stablehlo(found.lower())
    assert product[2] == SAID.replace("HIGHEST", "DEFAULT")


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (jnp.matmul, ((64, 96), (96, 32))),
        (lambda a, b: jnp.einsum("bij,bkj->bik", a, b), ((4, 16, 8), (4, 16, 8))),
        (load_ops()["aten.conv2d.default"].lower, ((2, 20, 8, 8), (24, 20, 3, 3))),
    ],
    ids=["product", "batched", "convolution"],
)
def test_the_cpu_runs_the_same_code(function: Callable[..., Any], shapes: Any) -> None:
    """XLA:CPU has float32 products in float32: to say so neither adds nor removes a kernel."""
    options = xla_options(jax.devices("cpu")[0])
    texts: list[str] = []
    for exact in (contextlib.nullcontext(), full_products()):
        with exact, without_native():
            compiled = trace(function, *shapes).lower().compile(compiler_options=options)
        lines = [line.partition(", metadata=")[0] for line in compiled.as_text().splitlines()]
        texts.append("\n".join(line for line in lines if " = " in line))
    said = ", operand_precision={highest,highest}"
    assert said in texts[1] and said not in texts[0]
    assert texts[1].replace(said, "") == texts[0]


@pytest.mark.slow
@pytest.mark.usefixtures("cheap_traces")
def test_products_of_all_operators() -> None:
    """Every operator of torch's database that the project has, with its gradients."""
    lowered_entries = with_products = 0
    for entry in load_entries():
        if entry.name in OUT_OF_SCOPE or "float32" not in entry.dtypes:
            continue
        if entry.name.startswith("jiterator"):  # torch itself has these on a GPU only
            continue
        try:
            lowered = lower_entry(entry.name)
        except (TraceError, *UNSUPPORTED):  # no such operation here: docs/op_coverage.md
            continue
        if lowered is not None:
            lowered_entries += 1
            with_products += assert_exact(lowered) > 0
            assert_none_of_the_cpus(lowered)
    assert lowered_entries > 450
    assert with_products > 60


SEED = jax.ShapeDtypeStruct((2,), np.uint32)
DRAWS: dict[str, Callable[[Any], Any]] = {
    "bits": lambda seed: uniform_bits(seed, 3, (4, 5)),
    "uniform": lambda seed: uniform(seed, 3, (4, 5)),
    "uniform64": lambda seed: uniform(seed, 3, (4, 5), np.float64),
    "normal": lambda seed: normal(seed, 3, (4, 5)),
    "dropout": lambda seed: load_ops()["aten.dropout.default"].lower(
        jnp.ones((4, 5)), 0.5, True, seed=seed, stream=2
    ),
    "next": lambda seed: load_ops()[NEXT_SEED].lower(seed),
}


@pytest.mark.parametrize("name", DRAWS)
def test_the_same_operations_on_every_platform(name: str) -> None:
    with wide_types():
        traced = jax.jit(DRAWS[name]).trace(SEED)
        ways = [traced.lower(lowering_platforms=(p,)) for p in ("cpu", "cuda")]
    assert ways[0].as_text() == ways[1].as_text()
    assert not custom_calls(ways[1])
    assert not [o.name for o in operations(ways[1]) if "rng" in o.name]


def test_bits_are_made_of_whole_numbers_alone() -> None:
    """What rounds could round otherwise elsewhere."""
    traced = jax.jit(DRAWS["bits"]).trace(SEED)
    found = operations(traced.lower(lowering_platforms=("cuda",)))
    types = {
        str(result.type.element_type)
        for operation in found
        if operation.name.startswith("stablehlo.")
        for result in operation.results
    }
    assert types == {"ui32"}
