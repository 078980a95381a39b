"""Which entries and samples of the database the device is not meant for, and why.

Everything else is in scope and counts in the percentages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tests.opinfo.samples import Sample

HALVES = "gives complex numbers of two halves"
EIGEN = "eigenvalues of any matrix, which XLA has on CPUs alone"
SPARSE = "takes or gives sparse tensors"
DATA_SHAPE = "the shape of its result depends on data"

OUT_OF_SCOPE: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("chalf",), HALVES),
        **dict.fromkeys(("linalg.eig", "linalg.eigvals"), EIGEN),
        **dict.fromkeys(("sparse.mm.reduce", "sparse.sampled_addmm", "to_sparse"), SPARSE),
        **dict.fromkeys(("argwhere", "bincount", "masked_select", "nonzero"), DATA_SHAPE),
        **dict.fromkeys(("unique", "unique_consecutive"), DATA_SHAPE),
        **dict.fromkeys(("linalg.lstsq", "linalg.lstsq.grad_oriented"), DATA_SHAPE),
    }
)
"""Entry to reason. That such an entry fails with ``UnsupportedOps`` is still checked."""


def _splits_by_tensor(sample: Sample) -> bool:
    return len(sample.tensors) > 1


def _repeats_by_tensor(sample: Sample) -> bool:
    _, kwargs = sample.arguments(sample.tensors)
    return len(sample.tensors) > 1 and kwargs.get("output_size") is None


def _counts_classes(sample: Sample) -> bool:
    numbers = [x for x in sample.leaves if isinstance(x, int)]
    return not numbers or numbers[-1] < 0


SAMPLES_OUT_OF_SCOPE: Mapping[str, tuple[Callable[[Sample], bool], str]] = MappingProxyType(
    {
        "tensor_split": (_splits_by_tensor, "places to split given as a tensor: " + DATA_SHAPE),
        "repeat_interleave": (
            _repeats_by_tensor,
            "numbers of repeats given as a tensor without `output_size`: " + DATA_SHAPE,
        ),
        "nn.functional.one_hot": (_counts_classes, "no number of classes: " + DATA_SHAPE),
    }
)
"""Entry to samples that are left out, and the reason."""


def in_scope(entry: str, sample: Sample) -> bool:
    """Whether a sample of an entry is one the device is meant for."""
    rule = SAMPLES_OUT_OF_SCOPE.get(entry)
    return rule is None or not rule[0](sample)
