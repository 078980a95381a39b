"""Settings of a compile, from keywords, a config dict, or the parsed command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samba.errors import ArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileSettings:
    """Where a PEF goes and how it is compiled.

    Args:
        pef: Path of the file to write.
        inference: Forward only.
        mapping: ``"section"`` or ``"spatial"``.
        optim_level: ``"o0"``, ``"o1"`` or ``"o3"``.
        accumulate: Whether gradients add up until ZEROGRAD runs.
    """

    pef: Path
    inference: bool
    mapping: str
    optim_level: str
    accumulate: bool


def compile_settings(
    *,
    name: str,
    config: Mapping[str, Any] | None,
    inference: bool | None,
    is_split_batch: bool,
) -> CompileSettings:
    """Settle a compile's options.

    Args:
        name: Fallback name of the PEF.
        config: ``config_dict`` as applications pass it; the last parsed command line if None.
        inference: Overrides the config's own value.
        is_split_batch: Whether gradients are accumulated over several runs.

    Returns:
        The settings.

    Raises:
        ArgumentError: If the mapping does not exist.
    """
    if config is None:
        from samba.utils.argparser import last_parsed_args

        parsed = last_parsed_args()
        config = vars(parsed) if parsed is not None else {}
    pef_name = str(config.get("pef_name") or name).removesuffix(".pef")
    folder = Path(config.get("output_folder") or "out")
    mapping = config.get("mapping") or "section"
    if mapping not in ("section", "spatial"):
        raise ArgumentError(where="mapping", found=repr(mapping), wanted="'section' or 'spatial'")
    return CompileSettings(
        pef=folder / pef_name / f"{pef_name}.pef",
        inference=bool(config.get("inference", False)) if inference is None else inference,
        mapping=mapping,
        optim_level=str(config.get("optim_level") or "o3"),
        accumulate=is_split_batch or int(config.get("grad_accumulation_steps") or 1) > 1,
    )
