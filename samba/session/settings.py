"""Settings of a compile, from keywords, a config dict, or the parsed command line."""

from __future__ import annotations

import difflib
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samba.argconf.options import OPTIONS
from samba.argconf.parsed import divides_batch, last_parsed_args, looked_at, noted_fields
from samba.compiler.arithmetic import Arithmetic, wanted_arithmetic
from samba.compiler.sections import CompileOptions
from samba.distributed.settings import bucket_bytes
from samba.errors import ArgumentError, described, literal
from samba.support.deviations import Deviations
from samba.support.given import whole_of

if TYPE_CHECKING:
    import torch

    from pef_schema.program import Program

_MAPPINGS = ("section", "spatial")
_MODES = ("normal", "inorder", "optimal")
_KEYS = (
    *("pef_name", "output_folder", "inference", "mapping", "optim_level", "data_parallel"),
    *("grad_accumulation_steps", "microbatch_size", "check_indices"),
    *("graphamp_preset", "bf16_cast", "enable_stochastic_rounding"),
)
"""Keys of ``config_dict`` that a session goes by."""
_KNOWN = frozenset([option.dest for option in OPTIONS])
deviations = Deviations()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileSettings(CompileOptions):
    """How a program is compiled, and where its PEF goes.

    Args:
        pef: Path of the file to write.
        arithmetic: What is rounded to bfloat16.
        dumps_graph: Whether the graph is written as JSON beside the PEF.
        plots: Whether a drawing of the graph is written beside the PEF.
        stats: Files for what was compiled as JSON.
    """

    pef: Path
    arithmetic: Arithmetic
    dumps_graph: bool = False
    plots: bool = False
    stats: tuple[Path, ...] = ()


def parsed_config(config: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """``config_dict`` as applications pass it; the last parsed command line if None.

    Raises:
        ArgumentError: If it is not a dict.
    """
    if config is None:
        parsed = last_parsed_args()
        return {} if parsed is None else noted_fields(parsed)
    if not isinstance(config, Mapping):
        raise ArgumentError(
            where="config_dict",
            found=type(config).__name__,
            wanted="a dict",
            hint="Pass vars(args), or nothing.",
        )
    _tell_misspelt(config)
    return config


def _tell_misspelt(config: Mapping[str, Any]) -> None:
    """Name keys that are almost those of a setting that is missing.

    Apps pass their whole command line, which has every setting beside the app's own options.
    """
    missing = [key for key in _KEYS if key not in config]
    for key in config if missing else ():
        if not isinstance(key, str) or key in _KNOWN:
            continue
        near = difflib.get_close_matches(key.replace("-", "_"), missing, n=1, cutoff=0.75)
        if near:
            deviations.tell(
                "unknown-config",
                f"config_dict has {key!r}, which is not a setting and is ignored; did you mean "
                f"{near[0]!r}?",
            )


def note_settled(program: Program, inputs: Iterable[torch.Tensor]) -> None:
    """Take note that options say what the PEF says anyway: they have their effect then.

    Args:
        program: The program of the PEF.
        inputs: What the model was traced with.
    """
    parsed = last_parsed_args()
    if parsed is None:
        return
    options, fields = looked_at(parsed), noted_fields(parsed)
    # No set: an app may have made the option a list, which has no hash.
    sizes = [t.shape[getattr(t, "batch_dim", None) or 0] for t in inputs if t.dim()]
    settled = {
        "batch_size": options.get("batch_size") in sizes,
        "inference": options.get("inference") == program.inference,
        "mapping": options.get("mapping") == program.mapping,
    }
    for name, agrees in settled.items():
        if agrees:
            fields.get(name)


def checks_indices(config: Mapping[str, Any]) -> bool:
    """Whether a configuration asks for computed indices to be checked (``--check-indices``)."""
    return bool(config.get("check_indices", False))


def check_mapping(mapping: Any, where: str) -> None:
    """Refuse a mapping that does not exist."""
    if mapping not in _MAPPINGS:
        raise ArgumentError(
            where=where, found=repr(mapping), wanted=" or ".join(map(repr, _MAPPINGS))
        )


def check_data_parallel_mode(mode: Any, function: str) -> None:
    """Refuse a ``data_parallel_mode`` that does not exist."""
    if mode not in _MODES:
        raise ArgumentError(
            where=f"{function}(data_parallel_mode=...)",
            found=repr(mode),
            wanted=" or ".join(map(repr, _MODES)),
        )


def compile_settings(
    *,
    name: str,
    config: Mapping[str, Any] | None,
    inference: bool | None,
    is_split_batch: bool,
) -> CompileSettings:
    """Settle a compile's options.

    Args:
        name: Name of the program, and fallback name of the PEF.
        config: ``config_dict`` as applications pass it; the last parsed command line if None.
        inference: Overrides the config's own value.
        is_split_batch: Whether gradients are accumulated over several runs.

    Returns:
        The settings.

    Raises:
        ArgumentError: If a value is none that exists.
    """
    config = parsed_config(config)
    mapping = config.get("mapping") or "section"
    check_mapping(mapping, "config_dict['mapping']")
    sizes = looked_at(config)
    if not divides_batch(sizes.get("batch_size"), sizes.get("microbatch_size")):
        raise ArgumentError(
            where="config_dict['microbatch_size']",
            found=repr(sizes["microbatch_size"]),
            wanted=f"a divisor of the batch size {sizes['batch_size']}",
        )
    pef = _pef(config, name)
    forward_only = bool(config.get("inference", False) if inference is None else inference)
    return CompileSettings(
        name=name,
        pef=pef,
        inference=forward_only,
        mapping=mapping,
        optim_level=str(config.get("optim_level") or "o3"),
        accumulate=bool(is_split_batch) or _steps(config.get("grad_accumulation_steps")) > 1,
        data_parallel=bool(config.get("data_parallel", False)) and not forward_only,
        bucket_bytes=bucket_bytes(),
        arithmetic=wanted_arithmetic(config).settled(),
        dumps_graph=bool(config.get("dump_traced_graph", False)),
        plots=bool(config.get("plot", False)),
        stats=_stats(config, pef),
    )


def _stats(config: Mapping[str, Any], pef: Path) -> tuple[Path, ...]:
    """The files of ``--compiled-stats-json`` and ``--dump-compiled-stats-json``, none the PEF.

    Raises:
        ArgumentError: If it could not be written: no time is spent on compiling then.
    """
    beside = (pef.with_suffix(".stats.json"),) if config.get("dump_compiled_stats_json") else ()
    value = config.get("compiled_stats_json") if config.get("command") == "compile" else None
    if not value:
        return beside
    where = "compile --compiled-stats-json"
    path = _path(value, where).absolute()
    if path.is_dir() or not path.parent.is_dir():
        problem = f"the folder {path}" if path.is_dir() else f"no folder {path.parent}"
        raise ArgumentError(where=where, found=problem, wanted="a file in a folder that exists")
    if path.resolve() == pef.absolute().resolve():
        raise ArgumentError(where=where, found=f"{path}, which is the PEF", wanted="another file")
    return (path, *beside)


def _pef(config: Mapping[str, Any], name: str) -> Path:
    """The file to write: that of ``compile -p``, or one in a folder of its own name."""
    value = config.get("pef") if config.get("command") == "compile" else None
    if value:
        if config.get("pef_name"):
            raise ArgumentError(
                where="compile --pef-name and -p",
                found=f"{config['pef_name']!r} and {str(value)!r}",
                wanted="one of them",
                hint="-p names the file itself, --pef-name a file below the output folder.",
            )
        return _path(value, "compile -p")
    pef_name = str(config.get("pef_name") or name).removesuffix(".pef")
    if (
        not is_path(pef_name)
        or not pef_name
        or os.path.basename(pef_name) != pef_name
        or pef_name in (".", "..")
    ):
        raise ArgumentError(
            where="pef_name",
            found=literal(pef_name),
            wanted="the name of a file, without folders",
            hint="Put the folder in output_folder.",
        )
    folder = _path(config.get("output_folder") or "out", "output_folder")
    return folder / pef_name / f"{pef_name}.pef"


def _path(value: Any, where: str) -> Path:
    """A path that the system has a form for.

    Raises:
        ArgumentError: If there is none.
    """
    try:
        path = Path(value)
    except TypeError:
        path = None
    if path is None or not is_path(str(path)):
        raise ArgumentError(where=where, found=described(value), wanted="a path")
    return path


def is_path(text: str) -> bool:
    """Whether a text can be a path: it can be encoded, and holds no NUL.

    Example:
        >>> is_path("out/a"), is_path("a\\0b"), is_path("\\ud800")
        (True, False, False)
    """
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def loss_index_tuple(indices: Sequence[Any] | None) -> tuple[int, ...] | None:
    """``loss_indices`` as numbers; entries may be numbers or tuples of one number.

    Raises:
        ArgumentError: If an entry is neither.
    """
    if indices is None:
        return None
    try:
        items = list(indices)
    except TypeError:
        items = [indices]
    alone = [i[0] if isinstance(i, (tuple, list)) and len(i) == 1 else i for i in items]
    wanted = "positions of outputs, from 0 on"
    return tuple([whole_of(number, "loss_indices", wanted=wanted) for number in alone])


def _steps(value: Any) -> int:
    if value is None:
        return 1
    try:
        steps = operator.index(value) if not isinstance(value, str) else int(value)
    except (TypeError, ValueError):
        steps = 0
    if steps < 1:
        raise ArgumentError(
            where="grad_accumulation_steps", found=repr(value), wanted="a whole number, 1 or more"
        )
    return steps
