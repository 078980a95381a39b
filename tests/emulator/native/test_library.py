"""When the native kernels are loaded, and what they say of a call that is not theirs."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emulator.kernels.convolutions import convolve
from emulator.kernels.products import product
from emulator.kernels.target import lowered_for, target_of
from emulator.kernels.windows import Window
from emulator.native import convolution, library as module
from emulator.native.library import (
    NATIVE_VARIABLE,
    leave_native_out,
    native_library,
    threads,
    without_native,
)
from tests import warm
from tests.processes import finished

pytestmark = pytest.mark.skipif(native_library() is None, reason="there are no native kernels here")

ROOT = Path(__file__).parents[3]
WINDOW = Window(
    kernel=(3, 3), stride=(1, 1), dilation=(1, 1), low=(1, 1), high=(1, 1), out=(16, 16)
)


def _text() -> str:
    """A convolution and a product as they are lowered now."""

    def both(x: jax.Array, w: jax.Array, a: jax.Array) -> Any:
        return convolve(x, w, WINDOW, 1), product("ij,jk->ik", a, a)

    shapes = ((4, 8, 16, 16), (8, 8, 3, 3), (256, 256))
    run: Any = jax.jit(both)
    return run.lower(*(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)).as_text()


def _calls() -> set[str]:
    text = _text()
    return {name for name in ("emulator_convolution", "emulator_product") if f"@{name}" in text}


EVERY = {"emulator_convolution", "emulator_product"}


def test_they_are_called_on_one_processor_alone() -> None:
    assert _calls() == EVERY
    for target in (target_of("cpu", 2), target_of("cuda")):
        with lowered_for(target):
            assert not _calls()
    assert _calls() == EVERY


def test_they_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with without_native():
        assert not _calls()
    leave_native_out()
    try:
        assert not _calls()
    finally:
        leave_native_out(False)
    monkeypatch.setenv(NATIVE_VARIABLE, "0")
    assert not _calls()
    monkeypatch.setenv(NATIVE_VARIABLE, "1")
    assert _calls() == EVERY


@pytest.fixture
def loaded_anew() -> Iterator[None]:
    """The library is looked for again, and again after the test."""
    module._load.cache_clear()
    yield
    module._load.cache_clear()
    assert native_library() is not None


@pytest.mark.usefixtures("loaded_anew")
@pytest.mark.parametrize(
    "missing", ["kernels", "onednn", "its file", "openmp", "functions", "sources", "jax"]
)
def test_one_line_says_what_is_missing(
    missing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def absent(*_: Any) -> Any:
        raise importlib.metadata.PackageNotFoundError

    def unreadable() -> Any:
        raise OSError("libgomp.so.1: cannot open shared object file")

    def incompatible(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the handler's API version is incompatible")

    if missing == "kernels":
        monkeypatch.setattr(module.sysconfig, "get_config_var", lambda _: ".none.so")
        line = "_kernels.none.so was not built when the package was installed"
    elif missing == "onednn":
        monkeypatch.setattr(module.importlib.metadata, "files", absent)
        line = "the package onednn-cpu-gomp is not installed"
    elif missing == "its file":
        monkeypatch.setattr(module.importlib.metadata, "files", lambda _: None)
        line = "the package onednn-cpu-gomp has no libdnnl.so.3"
    elif missing == "functions":
        monkeypatch.setattr(module, "_FAMILIES", ("Later",))
        line = f"{module._path_of_kernels()}: undefined symbol: LaterTypeId"
    elif missing == "sources":
        monkeypatch.setattr(module, "_digest_of_sources", lambda: 1)
        line = "they were built from other sources; install this package again"
    elif missing == "jax":
        monkeypatch.setattr(module.jax.ffi, "register_ffi_target", incompatible)
        line = "the handler's API version is incompatible"
    else:
        monkeypatch.setattr(module, "_load_openmp", unreadable)
        line = "libgomp.so.1: cannot open shared object file"
    with caplog.at_level(logging.WARNING):
        assert not _calls()
        assert not _calls()
    (record,) = caplog.records
    assert record.getMessage() == f"native kernels are left out, XLA's own are used: {line}"


@pytest.mark.usefixtures("loaded_anew")
def test_what_a_signals_handler_raises_is_no_missing_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A TimeoutError is an OSError, as the one of a library that is not there."""

    def late(*_: Any) -> None:
        raise TimeoutError("the script's own")

    found = module._path_of_kernels

    def path() -> Path:
        signal.raise_signal(signal.SIGUSR1)
        return found()

    before = signal.signal(signal.SIGUSR1, late)
    monkeypatch.setattr(module, "_path_of_kernels", path)
    try:
        with pytest.raises(TimeoutError, match="the script's own"):
            native_library()
    finally:
        signal.signal(signal.SIGUSR1, before)
    monkeypatch.setattr(module, "_path_of_kernels", found)
    assert native_library() is not None


@pytest.mark.usefixtures("loaded_anew")
@pytest.mark.parametrize("where", ["another system", "an old processor", "no cpu"])
def test_elsewhere_they_are_left_out_without_a_word(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def devices(backend: str) -> Any:
        raise RuntimeError(f"Unknown backend {backend}. Available backends are ['cuda']")

    if where == "another system":
        monkeypatch.setattr(module.sys, "platform", "darwin")
    elif where == "an old processor":
        monkeypatch.setattr(module, "_WANTED_ISA", frozenset({"avx1024"}))
    else:
        monkeypatch.setattr(module.jax, "local_devices", devices)
    assert native_library() is None
    assert not caplog.records


def test_torchs_openmp_does_where_the_system_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def load(name: str) -> None:
        opened.append(name)
        if name == "libgomp.so.1":
            raise OSError(name)

    monkeypatch.setattr(module.ctypes, "CDLL", load)
    module._load_openmp()
    assert opened[0] == "libgomp.so.1"
    assert Path(opened[1]).parts[-3:] == ("torch", "lib", "libgomp.so.1")
    assert Path(opened[1]).is_file()
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(OSError, match="libgomp"):
        module._load_openmp()


def test_threads_are_those_of_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPROC", "3")
    assert threads() == 3
    monkeypatch.delenv("NPROC")
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4})
    assert threads() == 5


_ATTRIBUTES: dict[str, Any] = {
    name: np.int64(value)
    for name, value in {
        "turned_a": 0, "turned_b": 0, "biased": 0, "narrow": 0, "rounded": 0, "threads": 1,
        "scratch": 4096,
    }.items()
}  # fmt: skip


@pytest.mark.parametrize(
    ("a", "b", "y", "dtype", "scratch"),
    [
        ((4, 6), (6, 5), (4, 4), "float32", 4096),
        ((4, 5), (6, 5), (4, 5), "float32", 4096),
        ((4, 6), (7, 5), (4, 5), "float32", 4096),
        ((4, 6), (6, 5), (4, 5), "bfloat16", 4096),
    ],
    ids=["result", "left", "right", "type"],
)
def test_shapes_that_are_not_the_calls_are_an_error(
    a: tuple[int, ...], b: tuple[int, ...], y: tuple[int, ...], dtype: str, scratch: int
) -> None:
    """A kernel reads and writes no element beyond what it was made for."""
    assert _product_of(a, b, y, dtype, scratch) == "shapes or types are not those"


def with_less_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give native kernels a byte less of scratch memory than they have been promised."""
    call = jax.ffi.ffi_call

    def with_less(target: str, results: Any, **more: Any) -> Any:
        *others, scratch = results
        less = jax.ShapeDtypeStruct((scratch.shape[0] - 1,), jnp.uint8)
        return call(target, [*others, less], **more)

    monkeypatch.setattr(jax.ffi, "ffi_call", with_less)


def _lowered() -> tuple[Any, jax.Array, jax.Array]:
    """A convolution whose kernels are copied into the order that oneDNN wants; its operands."""
    x, w = jnp.ones((4, 8, 16, 16)), jnp.ones((8, 8, 3, 3))
    return jax.jit(lambda x, w: convolve(x, w, WINDOW, 1)).lower(x, w), x, w


def test_too_little_scratch_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with_less_scratch(monkeypatch)
    lowered, x, w = _lowered()
    run = lowered.compile()
    with pytest.raises(Exception, match="convolution: its scratch memory is too small"):
        jax.block_until_ready(run(x, w))


def test_what_wants_more_than_it_was_lowered_for_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = convolution._scratch
    monkeypatch.setattr(convolution, "_scratch", lambda call: found(call) - 1)
    with pytest.raises(Exception, match="convolution: its scratch memory is too small"):
        _lowered()[0].compile()


def _product_of(
    a: tuple[int, ...], b: tuple[int, ...], y: tuple[int, ...], dtype: str, scratch: int
) -> str:
    results = (jax.ShapeDtypeStruct(y, jnp.float32), jax.ShapeDtypeStruct((scratch,), jnp.uint8))
    call = jax.ffi.ffi_call("emulator_product", results)
    run: Any = jax.jit(
        lambda a, b: call(a, b, shape=np.asarray((1, 4, 6, 5), np.int64), **_ATTRIBUTES)
    )
    with pytest.raises(Exception, match="product: ") as caught:
        jax.block_until_ready(run(jnp.ones(a, dtype), jnp.ones(b, dtype)))
    return str(caught.value).partition("product: ")[2][:29]


def test_images_whose_bytes_do_not_fit_31_bits_are_left_to_xla() -> None:
    """A gradient of weights of such an image ended the process; halves of it are computed."""
    length = 1 << 24
    call = convolution.ConvolutionCall(
        part=convolution.ConvolutionPart.WEIGHT_GRADIENT, groups=1, threads=1, x=(1, length, 32),
        w=(2, 32, 3), y=(1, length, 2), stride=(1,), dilation=(1,), low=(1,), high=(1,),
    )  # fmt: skip
    assert not convolution.has_convolution(call)
    assert convolution.has_convolution(replace(call, threads=2))


@pytest.mark.slow
def test_products_of_float32_take_whole_factors() -> None:
    """oneDNN may be told to round them to bfloat16; on processors with AMX it then does."""
    code = "from tests.emulator.native.test_library import run_both; run_both()"
    environ = {**os.environ, "ONEDNN_DEFAULT_FPMATH_MODE": "BF16", "ONEDNN_VERBOSE": "2"}
    done = finished([sys.executable, "-c", code], env=environ)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if "cpu,matmul" in line]
    assert lines
    assert not [line for line in done.stdout.splitlines() if "attr-fpmath" in line]


def test_torchs_threads_stay_as_they_are() -> None:
    """oneDNN runs with one thread of its own; what OpenMP is told for that is told back."""
    code = """
import torch
torch.set_num_threads(3)
from tests.emulator.native.test_library import EVERY, _calls, run_both
assert _calls() == EVERY
run_both()
print(torch.get_num_threads())
"""
    done = warm.finished([sys.executable, "-c", code])
    assert (done.returncode, done.stdout.strip()) == (0, "3"), done.stderr


def run_both() -> None:
    """Compute a convolution and a product by native kernels, on several threads."""
    x, w, a = jnp.ones((4, 8, 16, 16)), jnp.ones((8, 8, 3, 3)), jnp.ones((256, 256))
    for _ in range(3):
        y = jax.jit(lambda x, w: convolve(x, w, WINDOW, 1))(x, w)
        z = jax.jit(lambda a: product("ij,jk->ik", a, a))(a)
        assert float(y[0, 0, 5, 5]) == 72
        assert float(z[0, 0]) == 256
