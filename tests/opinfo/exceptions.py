"""What single entries need: other comparisons and other calls, each with its reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from samba.comparison.sides import Tol
from tests.opinfo.catalog import Entry
from tests.opinfo.samples import Sample

UNINITIALISED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
    }
)
"""They give memory as it is found."""

GAUGE = frozenset({"linalg.eigh", "linalg.svd", "svd", "linalg.eig", "svd_lowrank", "pca_lowrank"})
"""Vectors are defined but for a sign: the sample's own post-processing makes them unique."""

HERMITIAN = frozenset(
    {
        "cholesky",
        "linalg.cholesky",
        "linalg.cholesky_ex",
        "linalg.eigh",
        "linalg.eigvalsh",
        "linalg.pinv.hermitian",
    }
)
"""Only one triangle of the input is read, so that gradients are compared for symmetric inputs."""

TOLERANCES: dict[str, tuple[Tol | None, Tol | None, str]] = {
    "svd_lowrank": (
        None,
        Tol(rtol=1e-4, atol=1e-4),
        "gradients pass through the inverse of a random projection, whose condition multiplies "
        "rounding",
    ),
}
"""Entry to tolerance of results, of gradients, and the reason."""


COMPLEX_TOLERANCES: dict[str, tuple[Tol | None, Tol | None, str]] = {
    name: (
        None,
        Tol(rtol=1e-3, atol=1e-3),
        "as above, of complex64 (torch's own gradients stand up to 2e-3 from complex128's)",
    )
    for name in ("svd_lowrank", "pca_lowrank")
}
"""The same for arguments of complex64."""


def _stable_sort(x: torch.Tensor, dim: int = -1, descending: bool = False, **kwargs: Any) -> Any:
    return torch.sort(x, dim=dim, descending=descending, **{**kwargs, "stable": True})


def _stable_argsort(
    x: torch.Tensor, dim: int = -1, descending: bool = False, **kwargs: Any
) -> torch.Tensor:
    del kwargs
    return torch.sort(x, dim=dim, descending=descending, stable=True)[1]


def _stable_topk(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Any:
    del sorted
    if not x.dim():
        return torch.topk(x, k, dim, largest)
    values, indices = torch.sort(x, dim=dim, descending=largest, stable=True)
    return values.narrow(dim, 0, k), indices.narrow(dim, 0, k)


def _stable_kthvalue(x: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    if not x.dim():
        return torch.kthvalue(x, k, dim, keepdim)
    values, indices = torch.sort(x, dim=dim, stable=True)
    pair = values.narrow(dim, k - 1, 1), indices.narrow(dim, k - 1, 1)
    return pair if keepdim else tuple(t.squeeze(dim) for t in pair)


TIES: dict[str, Callable[..., Any]] = {
    "argsort": _stable_argsort,
    "kthvalue": _stable_kthvalue,
    "sort": _stable_sort,
    "topk": _stable_topk,
}
"""Torch leaves open which of equal elements comes first (its choice changes with their number);
the device takes them in their order, as torch does on ``stable=True``, which is compared with."""


def function_of(entry: Entry, sample: Sample) -> Callable[..., Any]:
    """What is called for an entry."""
    operator = entry.info.op
    if entry.name in HERMITIAN:
        wrapper = entry.info.gradcheck_wrapper
        operator = _bind(wrapper, operator)
    if entry.name in GAUGE:
        return _then(operator, sample.process)
    return operator


def _bind(wrapper: Callable[..., Any], operator: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return wrapper(operator, *args, **kwargs)

    return call


def _then(operator: Callable[..., Any], process: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return process(operator(*args, **kwargs))

    return call


def is_uninitialised(entry: Entry) -> bool:
    """Whether results are memory as it is found."""
    return entry.name in UNINITIALISED


def tolerances(entry: Entry, tensors: Sequence[torch.Tensor]) -> tuple[Tol | None, Tol | None]:
    """Tolerances of results and of gradients; None for the dtype's own."""
    halves = any(t.dtype is torch.complex64 for t in tensors)
    found = COMPLEX_TOLERANCES.get(entry.name) if halves else None
    found = found or TOLERANCES.get(entry.name)
    return (None, None) if found is None else found[:2]


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
