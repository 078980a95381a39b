"""What single entries need: other comparisons and other calls, each with its reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from emulator.ops.registry import Tol
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

TOLERANCES: dict[str, tuple[Tol, Tol, str]] = {}
"""Entry to tolerance of results, of gradients, and the reason."""


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


def tolerances(entry: Entry) -> tuple[Tol | None, Tol | None]:
    """Tolerances of results and of gradients; None for the dtype's own."""
    found = TOLERANCES.get(entry.name)
    return (None, None) if found is None else found[:2]
