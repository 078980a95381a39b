"""Samples of torch's operator database with other sizes and other strides, on both sides."""

from __future__ import annotations

import dataclasses
import enum
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import torch

from emulator.errors import LoweringError
from pef_schema.errors import SambaError
from pef_schema.program import Program
from samba.compiler.build import build_program
from samba.compiler.sections import CompileOptions
from tests.opinfo.call import Call, Eager, leaves_like, run_eager
from tests.opinfo.catalog import Entry
from tests.opinfo.check import forms, is_random, judge
from tests.opinfo.compare import differences
from tests.opinfo.compiled import Compiled
from tests.opinfo.exceptions import OUT_OF_SCOPE, function_of, in_scope
from tests.opinfo.samples import Sample, choose, list_samples, seed_for
from tests.sweeps.tally import Outcome
from tests.tracing import trace

Leaves = Callable[[Sequence[torch.Tensor]], tuple[torch.Tensor, ...]]


class Plain:
    """The program of contiguous tensors: one for all layouts of a sample."""

    def __init__(self) -> None:
        self._program: Program | None = None

    def is_of(self, module: Call, plain: Sequence[torch.Tensor], program: Program) -> bool:
        """Whether a program is the one of contiguous tensors.

        Args:
            module: The call.
            plain: Contiguous tensors.
            program: The program of tensors that lie otherwise.
        """
        if self._program is None:
            self._program = _program(module, plain)
        return self._program == program


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A changed sample.

    Args:
        what: How it was changed.
        sample: The outcome.
        leaves: Lays out its tensors; values may depend on it, sizes do not.
        plain: What is compiled where they lie as usual.
    """

    what: str
    sample: Sample
    leaves: Leaves = leaves_like
    plain: Plain = field(default_factory=Plain)


def samples_of(entry: Entry, count: int) -> list[Sample]:
    """Up to so many samples of an entry, in the first dtype that it has of those that are tried.

    Args:
        entry: The entry.
        count: How many argument structures.
    """
    if not entry.dtypes or entry.name in OUT_OF_SCOPE:
        return []
    dtype = entry.dtypes[0]
    gradients = dtype == "float32" and entry.info.supports_autograd
    listed = [s for s in list_samples(entry, dtype, gradients=gradients) if in_scope(entry.name, s)]
    # What has axes: a number has no size to change, and no strides.
    wide = [s for s in listed if max((t.dim() for t in s.tensors), default=0) > 1]
    return [group[0] for group in choose(wide or listed, count)]


# -- other sizes ---------------------------------------------------------------


def _cut(sample: Sample, length: int, axes: Mapping[int, Sequence[int]]) -> Sample:
    """The sample with some axes of some tensors cut to a length."""
    tensors = list(sample.tensors)
    for index, given in axes.items():
        t = tensors[index].detach()
        for axis in given:
            t = t.narrow(axis, 0, min(length, t.shape[axis]))
        # Whole numbers may be indices of what was cut: the first place is there if any is.
        t = t.clone() if t.is_floating_point() else torch.zeros_like(t)
        tensors[index] = t.requires_grad_(tensors[index].requires_grad)
    return dataclasses.replace(sample, tensors=tuple(tensors))


CRASHES = frozenset(
    {
        *("lu_unpack", "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"),
        *("_segment_reduce.lengths", "_segment_reduce.offsets", "nn.functional.embedding_bag"),
    }
)
"""Entries of other sizes that are not tried: torch reads beside what does not fit, and dies."""

NO_GRADIENT_OF_NO_ROWS = frozenset({"nn.functional.pdist"})
"""Entries whose gradient is not tried where a tensor has no elements: torch's kernels die there."""


def sized(sample: Sample) -> Iterator[tuple[Variant, ...]]:
    """Variants of other sizes: each axis of each tensor without places, and one element of all.

    An axis goes alone, with the same axis of all tensors that are as long there, counted from the
    first or from the last axis: whichever torch takes.

    Yields:
        Variants that stand for one another: the first that torch takes is compared.
    """
    seen: set[object] = set()
    for index, tensor in enumerate(sample.tensors):
        for axis, size in enumerate(tensor.shape):
            if not size or tensor.layout is not torch.strided:
                continue
            ways: list[Variant] = []
            together = _as_long(sample, axis, size), _as_long(sample, axis - tensor.dim(), size)
            for which in (*together, {index: [axis]}):
                if index not in which:
                    continue
                cut = _cut(sample, 0, which)
                shapes = tuple(t.shape for t in cut.tensors)
                if shapes not in seen:
                    seen.add(shapes)
                    ways.append(Variant(what=f"sizes {_shown(cut)}", sample=cut))
            if ways:
                yield tuple(ways)
    ones = _cut(sample, 1, {i: range(t.dim()) for i, t in enumerate(sample.tensors)})
    if any(t.shape != s.shape for t, s in zip(ones.tensors, sample.tensors, strict=True)):
        yield (Variant(what=f"one element {_shown(ones)}", sample=ones),)


def _as_long(sample: Sample, axis: int, size: int) -> dict[int, list[int]]:
    return {
        i: [axis]
        for i, t in enumerate(sample.tensors)
        if -t.dim() <= axis < t.dim() and t.shape[axis] == size
    }


def _shown(sample: Sample) -> str:
    return ", ".join(str(tuple(t.shape)) for t in sample.tensors)


# -- other strides -------------------------------------------------------------


def _transposed(t: torch.Tensor) -> torch.Tensor:
    return t.mT.contiguous().mT if t.dim() > 1 else t


def _expanded(t: torch.Tensor) -> torch.Tensor:
    if not t.numel() or not t.dim():
        return t
    return t.narrow(-1, 0, 1).expand(t.shape)


def _sliced(t: torch.Tensor) -> torch.Tensor:
    return torch.stack([t, t], -1)[..., 0] if t.dim() else t


def _channels_last(t: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return t.contiguous(memory_format=formats[t.dim()]) if t.dim() in formats else t


LAYOUTS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = MappingProxyType(
    {
        "transposed": _transposed,
        "expanded": _expanded,
        "sliced": _sliced,
        "channels last": _channels_last,
    }
)


def _laid_out(layout: Callable[[torch.Tensor], torch.Tensor]) -> Leaves:
    def leaves(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        made: list[torch.Tensor] = []
        for t in tensors:
            fresh = t.detach().clone(memory_format=torch.contiguous_format)
            made.append(layout(fresh).requires_grad_(t.requires_grad))
        return tuple(made)

    return leaves


def strided(sample: Sample) -> Iterator[Variant]:
    """Variants that lie in memory in other ways."""
    if any(t.layout is not torch.strided for t in sample.tensors):
        return
    usual = [t.stride() for t in _laid_out(lambda t: t)(sample.tensors)]
    plain = Plain()
    for name, layout in LAYOUTS.items():
        leaves = _laid_out(layout)
        if [t.stride() for t in leaves(sample.tensors)] != usual:
            yield Variant(what=name, sample=sample, leaves=leaves, plain=plain)


# -- both sides ----------------------------------------------------------------

UNGRADED = frozenset(
    {
        *("scatter", "scatter_add", "nn.functional.channel_shuffle"),
        *(f"scatter_reduce.{how}" for how in ("sum", "mean", "prod", "amin", "amax")),
        *("nn.functional.adaptive_avg_pool2d", "nn.functional.interpolate.area"),
    }
)
"""Entries whose gradient torch itself refuses for some sizes: the row of that in
docs/deviations.md."""


class End(enum.Enum):
    """Why a variant is not compared."""

    RAISES = "both raise"
    VALUES = "torch raises for values, which a running program cannot"
    LAYOUT = "torch raises for how its arguments lie, which a program does not know"
    GRADIENT = "torch computes and refuses the gradient, for sizes or strides alone"
    NO_TENSOR = "no tensor among the results"
    UNWRITTEN = "torch gives memory that it has not written"


_VALUES = re.compile(
    r"positive-definite|singular|converge|[pP]ivots|out of bounds|out of range|number of ones|"
    r"to sum to"
)
"""What torch says of values, whatever the sizes: see `unchecked-index` in docs/deviations.md."""

_LAYOUT = re.compile(
    r"is_contiguous|not compatible with input tensor's size and stride|"
    r"a last dimension with stride 1"
)
"""What torch says of strides: a session refuses views that it refuses, see `viewed_inputs.py`, and
the row of `native_group_norm` in docs/deviations.md is of the rest."""


def run(entry: Entry, ways: Sequence[Variant]) -> tuple[Outcome, str] | End:
    """Run a variant on both sides.

    Args:
        entry: The entry.
        ways: Variants that stand for one another.

    Returns:
        The outcome for the first that torch takes, and what differed. Where torch takes none, the
        device must not either. Where torch computes a variant and no gradient, its values alone are
        compared.
    """
    seed = seed_for(entry.name)
    said = ""
    graded = ways if entry.name not in NO_GRADIENT_OF_NO_ROWS or not _is_empty(ways) else ()
    ungraded = [(_without_gradient(way), way if graded else None) for way in ways]
    for way, wanted in (*((way, None) for way in graded), *ungraded):
        torch.manual_seed(seed)
        try:
            module = Call(function_of(entry, way.sample), way.sample)
            eager = run_eager(module, way.sample.tensors, seed=seed, leaves=way.leaves)
        except Exception as error:
            said = said or _text(error)
            continue
        if not eager.outputs:
            return End.NO_TENSOR
        found = _compared(entry, module, way, eager, seed)
        if found[0] is Outcome.SILENT and _is_unwritten(module, way, eager, seed):
            return End.UNWRITTEN
        is_right = wanted is not None and found[0] is Outcome.EQUAL
        return (_refused_gradient(entry, wanted, said) if is_right else None) or found
    return _refused(_call_of(entry, ways[0].sample), ways[0], said)


def _is_unwritten(module: Call, way: Variant, eager: Eager, seed: int) -> bool:
    """Whether results of torch are others where new memory of torch holds NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)
            again = run_eager(module, way.sample.tensors, seed=seed, leaves=way.leaves)
    finally:
        torch.use_deterministic_algorithms(before)
    return any(
        bool((torch.isnan(new) & ~torch.isnan(old)).any())
        for old, new in zip(eager.outputs, again.outputs, strict=True)
    )


def _refused_gradient(entry: Entry, way: Variant, said: str) -> tuple[Outcome, str] | End | None:
    """Whether the device, too, refuses a gradient that torch refuses where it has values."""
    if not any(t.requires_grad for t in way.sample.tensors):
        return None
    found = _refused(Call(function_of(entry, way.sample), way.sample), way, said)
    if found is End.LAYOUT or (entry.name in UNGRADED and way.leaves is leaves_like):
        return End.GRADIENT
    return found


def _is_empty(ways: Sequence[Variant]) -> bool:
    return any(not t.numel() for way in ways for t in way.sample.tensors)


def _without_gradient(way: Variant) -> Variant:
    tensors = tuple(t.detach() for t in way.sample.tensors)
    return dataclasses.replace(way, sample=dataclasses.replace(way.sample, tensors=tensors))


def _call_of(entry: Entry, sample: Sample) -> Call:
    """The call of a sample that torch refuses, which cannot be asked what it changes."""
    module = Call.__new__(Call)
    torch.nn.Module.__init__(module)
    module.function, module.sample, module.changed = function_of(entry, sample), sample, ()
    return module


def _refused(module: Call, way: Variant, said: str) -> tuple[Outcome, str] | End:
    """Whether the device, too, refuses what torch refuses."""
    try:
        compiled = Compiled(module, way.leaves(way.sample.tensors), through_file=False)
        eager = Eager(outputs=(), wanted=(), cotangents=(), gradients=())
        graph = compiled.program.graphs[0]
        nothing = dataclasses.replace(eager, cotangents=(None,) * len(graph.outputs))
        compiled.run(way.sample.tensors, nothing)
    except Exception as error:
        if _is_named(error):
            return End.RAISES
        return Outcome.SILENT, f"{_text(error)}, torch raises {said}"
    if way.leaves is not leaves_like and _LAYOUT.search(said):
        return End.LAYOUT
    if _VALUES.search(said):
        return End.VALUES
    return Outcome.SILENT, f"the device gives values, torch raises {said}"


def _is_named(error: Exception) -> bool:
    """Whether an error is one that a person is to see; one of a lowering itself is a defect."""
    return isinstance(error, SambaError) and type(error) is not LoweringError


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _compared(
    entry: Entry, module: Call, way: Variant, eager: Eager, seed: int
) -> tuple[Outcome, str]:
    tensors = way.leaves(way.sample.tensors)
    try:
        if way.leaves is not leaves_like:
            plain = way.sample.tensors
            torch.manual_seed(seed)
            usual = run_eager(
                module, plain if way.what != "expanded" else [t.clone() for t in tensors],
                seed=seed, cotangents=eager.cotangents,
            )  # fmt: skip
            same = not differences(usual.outputs, eager.outputs, None, "output")
            same = same and not differences(usual.gradients, eager.gradients, None, "gradient")
            if same and way.plain.is_of(module, plain, _program(module, tensors)):
                return Outcome.EQUAL, ""  # torch's numbers, and the program of contiguous tensors
        compiled = Compiled(module, tensors, through_file=False)
        got = compiled.run(tensors, eager)
    except Exception as error:
        return (Outcome.NAMED if _is_named(error) else Outcome.SILENT), _text(error)
    if is_random(entry, module, tensors, eager):
        text = forms(got, eager)
    else:
        text, gradient_text = judge(entry, module, tensors, eager, got, seed)
        text = text or gradient_text
    return (Outcome.SILENT, text) if text else (Outcome.EQUAL, "")


def _program(module: Call, tensors: Sequence[torch.Tensor]) -> Program:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build_program(trace(module, tuple(tensors)), [], CompileOptions(name="variant"))


def variants(entry: Entry, sample: Sample) -> Iterator[tuple[Variant, ...]]:
    """All variants of a sample; those of a tuple stand for one another."""
    if entry.name not in CRASHES:
        yield from sized(sample)
    for variant in strided(sample):
        yield (variant,)
