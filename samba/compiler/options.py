"""Settings of a compile."""

from __future__ import annotations

from dataclasses import dataclass

from samba.compiler.sections import DEFAULT_SECTION_BYTES
from samba.distributed.settings import DEFAULT_BUCKET_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """Settings of a compile.

    Args:
        name: Name of the program.
        inference: Forward only.
        mapping: ``"section"`` or ``"spatial"``.
        optim_level: Section policy, ``"o0"``, ``"o1"`` or ``"o3"``.
        section_bytes: What an ``o3`` section may touch, in bytes.
        loss_indices: Outputs that are losses; None to find them by shape (:mod:`.losses`).
        accumulate: Whether gradients add up until ZEROGRAD runs.
        data_parallel: Whether gradients are reduced between replicas: they lie in buckets then,
            each with a REDUCE section.
        bucket_bytes: What a bucket may hold.
        metadata: Free text stored in the PEF.
    """

    name: str
    inference: bool = False
    mapping: str = "section"
    optim_level: str = "o3"
    section_bytes: int = DEFAULT_SECTION_BYTES
    loss_indices: tuple[int, ...] | None = None
    accumulate: bool = False
    data_parallel: bool = False
    bucket_bytes: int = DEFAULT_BUCKET_BYTES
    metadata: tuple[tuple[str, str], ...] = ()
