"""Running one drawn call of an operation on the device, and comparing its form with torch's."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils import _pytree as pytree

from emulator.dtypes import TO_NUMPY
from emulator.ops.registry import OpSpec, load_ops
from emulator.plans.traced import OversizedResult, check_traced_sizes
from emulator.plans.xla_options import xla_options
from pef_schema.errors import SambaError
from tests.emulator.fuzz.op_cases import Case, draw, torch_overload
from tests.emulator.ops.checks import TORCH_TO_DTYPE, to_jax
from tests.fuzz.outcome import Outcome
from tests.processes import peak_bytes

LARGEST_RESULT = 2**27
"""Bytes of results above which a case is not run: they are what was asked for, not a defect."""
SPARE = 4 * 2**30
"""Address space that a case may take beyond what the process has when it begins."""
MEMORY_FLOOR = 2**30
"""Memory that a case may take whatever its size: XLA's own while it compiles."""


_NOTES = frozenset({"aten._embedding_bag.default", "aten._embedding_bag_forward_only.default"})
"""Ops whose results after the first are torch's notes for its own backward pass."""


_UNCHECKED = frozenset({"aten._weight_norm.default", "aten._weight_norm_interface.default"})
"""Ops that torch computes without a look at whether the shapes fit."""


class _TooLarge(Exception):
    """A case asks for more than it is worth running."""


def prepare() -> None:
    """Compile a program before memory is counted."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    jax.block_until_ready(jax.jit(lambda x: x + 1)(jnp.ones(3)))


def attempt(name: str, _: bytes) -> Outcome:
    """Run a case on the device, then by torch, which may die of it; that is not a find.

    Args:
        name: ``OP:SEED``.

    Returns:
        The outcome. Finds are an end of the process, a hang, far more memory than the data, and
        another shape or dtype than torch's; other values and foreign errors are counted.
    """
    op, seed = name.rsplit(":", 1)
    case = draw(op, int(seed))
    _reset_peak()
    before = peak_bytes()
    found: list[np.ndarray] | None = None
    label, text = "ran", ""
    try:
        found = _on_device(case)
    except _TooLarge as large:
        return Outcome(label="too large", text=str(large))
    except SambaError as error:
        label, text = "refused", f"{type(error).__name__}: {error}"
    except Exception as error:  # what comes is counted, by its type
        label, text = f"foreign {type(error).__name__}", str(error)[:300]
    taken = peak_bytes() - before
    own = sum(x.nbytes for x in found or ()) + sum(t.nbytes for t in _tensors(case))
    if taken > 3 * own + MEMORY_FLOOR:
        said = f"{taken >> 20} MiB beside {own} bytes of data"
        return Outcome(label="memory", find=True, place=op, text=said)
    wanted = _in_torch(case)
    if wanted is not None and label.startswith("foreign"):
        label += ", torch accepts"
    if wanted is not None and found is not None and case.op not in _UNCHECKED:
        difference = _difference(case, found, wanted)
        if difference:
            label, text = difference
            return Outcome(label=label, find=label in ("shape", "dtype"), place=op, text=text)
    return Outcome(label=label, text=text)


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


# -- the device --------------------------------------------------------------


def _tensors(case: Case) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves((case.args, list(case.kwargs.values())))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _replaced(tree: Any, arrays: Any) -> Any:
    """Arguments as a program holds them, with arrays in place of tensors."""
    if isinstance(tree, torch.Tensor):
        return next(arrays)
    if isinstance(tree, torch.dtype):
        return TORCH_TO_DTYPE[tree]
    if isinstance(tree, (list, tuple)):
        return tuple(_replaced(item, arrays) for item in tree)
    return tree


def _on_device(case: Case) -> list[np.ndarray]:
    """Results of a case; for every second seed its gradients are computed, too."""
    spec: OpSpec = load_ops()[case.op]
    tensors = _tensors(case)
    with jax.enable_x64(True):
        seed = jnp.asarray([case.seed & 0xFFFF, 1], jnp.uint32)
        arrays = [to_jax(t) for t in tensors]

        def run(seed: jax.Array, flat: list[jax.Array]) -> tuple[jax.Array, ...]:
            at = iter(flat)
            args = _replaced(case.args, at)
            kwargs = {k: _replaced(v, at) for k, v in case.kwargs.items()}
            if spec.random:
                kwargs.update(seed=seed, stream=1)
            found = spec.lower(*args, **kwargs)
            return tuple(found) if isinstance(found, (tuple, list)) else (found,)

        shapes = jax.eval_shape(run, seed, arrays)
        total = sum(s.size * s.dtype.itemsize for s in shapes)
        if total > LARGEST_RESULT:
            raise _TooLarge(f"{total} bytes of results")
        whole: Any = run
        if spec.differentiable and case.seed % 2:
            whole = _with_gradients(run, arrays)
        options = xla_options(jax.devices("cpu")[0])
        traced = jax.jit(whole).trace(seed, arrays)
        try:
            check_traced_sizes(traced.jaxpr)
        except OversizedResult as error:  # the device refuses it in the same place
            raise _TooLarge(str(error)) from None
        compiled = traced.lower().compile(compiler_options=options)
        found = compiled(seed, arrays)
        jax.block_until_ready(found)
        results = found[0] if whole is not run else found
        return [np.asarray(x) for x in results]


def _with_gradients(run: Any, arrays: list[jax.Array]) -> Any:
    floats = [i for i, a in enumerate(arrays) if jnp.issubdtype(a.dtype, jnp.floating)]

    def both(seed: jax.Array, flat: list[jax.Array]) -> Any:
        def of(chosen: list[jax.Array]) -> Any:
            full = list(flat)
            for i, a in zip(floats, chosen, strict=True):
                full[i] = a
            results = run(seed, full)
            return [r for r in results if jnp.issubdtype(r.dtype, jnp.floating)], results

        main, pull, results = jax.vjp(of, [flat[i] for i in floats], has_aux=True)
        return results, pull([jnp.ones_like(m) for m in main])

    return both


# -- torch -------------------------------------------------------------------


def _in_torch(case: Case) -> list[torch.Tensor | None] | None:
    """Torch's results; None where it refuses the case, has no such op, or shows foreign memory."""
    overload = torch_overload(case.op)
    if overload is None:
        return None
    try:
        found: Any = overload(*case.args, **case.kwargs)
    except Exception:  # torch's refusals have many types
        return None
    results = list(found) if isinstance(found, (tuple, list)) else [found]
    return results if all(map(_has_its_memory, results)) else None


def _has_its_memory(result: Any) -> bool:
    """Whether a result lies in the memory that it has: `_reshape_alias` takes any strides."""
    if not isinstance(result, torch.Tensor) or result.layout is not torch.strided:
        return True
    if not result.numel():
        return True
    last = sum((n - 1) * stride for n, stride in zip(result.shape, result.stride(), strict=True))
    end = (result.storage_offset() + last + 1) * result.element_size()
    return end <= result.untyped_storage().nbytes()


def _wide(x: torch.Tensor) -> np.ndarray:
    plain = x.detach().resolve_conj().resolve_neg()
    return (plain.double() if plain.is_floating_point() else plain).numpy()


def _difference(
    case: Case, found: list[np.ndarray], wanted: list[torch.Tensor | None]
) -> tuple[str, str] | None:
    if len(found) < len(wanted):
        return "shape", f"{len(found)} results, torch has {len(wanted)}"
    for i, (g, w) in enumerate(zip(found, wanted, strict=False)):
        if i and case.op in _NOTES:
            break
        if not isinstance(w, torch.Tensor):
            continue
        if g.shape != tuple(w.shape):
            return "shape", f"result {i}: {g.shape}, torch has {tuple(w.shape)}"
        dtype = TORCH_TO_DTYPE.get(w.dtype)
        # Results are cast to what the graph says, see ``emulator.lowering.section.run_node``.
        both = jnp.issubdtype(g.dtype, jnp.floating) and w.dtype.is_floating_point
        cut = jnp.issubdtype(g.dtype, jnp.floating) and not w.dtype.is_floating_point
        if g.size == 0:
            continue
        if dtype is None or cut:
            return "dtype", f"result {i}: {g.dtype}, torch has {w.dtype}"
        if load_ops()[case.op].random or "empty" in case.op:
            continue
        value = _wide(w)
        with np.errstate(all="ignore"):
            # What is far off, in any dtype; tests/emulator/ops hold each op to its own tolerance.
            near = np.isclose(g.astype(np.float64), value, rtol=0.05, atol=0.05, equal_nan=True)
        close = near if both else g.astype(TO_NUMPY[dtype]) == value
        if not close.all():
            at = tuple(int(a) for a in np.argwhere(~close)[0])
            return "value", f"result {i} at {list(at)}: {g[at]}, torch has {value[at]}"
    return None
