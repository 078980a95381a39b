"""Checkpoints: saved tensor by tensor, loaded file by file, from several files too."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from emulator.handler_errors import raise_error_of_handler
from pef_schema.atomic import write_atomically
from pef_schema.errors import SambaError, quoted
from pef_schema.printable import some_of
from samba.errors import ArgumentError, MissingPackage, described, literal
from samba.sambatensor import SambaTensor, to_torch
from samba.support.naming import join_name, root_of
from samba.support.strict_json import NotJson, parse_json
from samba.tensor.views import UnreadableTensor, readable

__all__ = ["BadCheckpoint", "LoadResult", "load_sharded_checkpoint", "save_checkpoint"]

_INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SINGLE = ("model.safetensors", "pytorch_model.bin")
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Types by their names in such files."""

_WRITTEN = ("F64", "F32", "F16", "BF16", "C64", "I64", "I32", "I16", "I8", "U8", "BOOL")
_NAMES = {_DTYPES[name]: name for name in _WRITTEN}
"""Names of the types of parameters and buffers in safetensors files."""

_HEADER_BYTES = 32 * 2**20
"""Longest header that is written, and longest index that is read: some 250,000 tensors."""

_ADVICE = ("Weights only load failed", "Please file an issue", "Check the documentation")
"""Beginnings of lines in torch's messages that are not about the file."""

_LISTED = 8
"""Keys that a message lists."""


class BadCheckpoint(SambaError, ValueError):
    """A checkpoint is not one, or does not fit the model.

    Args:
        path: The file or folder.
        problem: What was found and what was wanted, as a sentence.
    """

    def __init__(self, *, path: str, problem: str) -> None:
        self.path = path
        super().__init__(f"{quoted(path, most=1024)}: {problem}")


class LoadResult(NamedTuple):
    """Keys that found no partner.

    ``missing_keys`` are of the model, ``unexpected_keys`` of the checkpoint.
    """

    missing_keys: list[str]
    unexpected_keys: list[str]


def save_checkpoint(model: nn.Module, path: str | PathLike[str]) -> None:
    """Saves parameters and buffers of a model to a safetensors file, under their region names.

    Tensors that share a region are written once. One tensor at a time is made where parameters
    are lazy, so no more memory is needed than for the largest. The file is replaced as a whole.
    :func:`load_sharded_checkpoint` and the safetensors package read it.

    Args:
        model: The model, as it is on the host: ``samba.session.to_cpu(model)`` comes first.
        path: The file, by custom ``*.safetensors``.

    Raises:
        BadCheckpoint: A tensor has a dtype that such files cannot hold.
        SambaError: The file cannot be written; what was there is then untouched.

    Example:
        >>> import tempfile
        >>> model = nn.Linear(2, 3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_checkpoint(model, f"{folder}/linear.safetensors")
        ...     load_sharded_checkpoint(nn.Linear(2, 3), f"{folder}/linear.safetensors")
        LoadResult(missing_keys=[], unexpected_keys=[])
    """
    file, tensors = str(_place(path)), _regions(model)
    bad = [f"{name} has {t.dtype}" for name, t in tensors.items() if t.dtype not in _NAMES]
    if bad:
        raise BadCheckpoint(
            path=file, problem=f"{', '.join(bad)}, which safetensors files cannot hold"
        )
    write_atomically(file, _chunks(tensors, file))


def _chunks(tensors: Mapping[str, torch.Tensor], path: str) -> Iterator[bytes]:
    """A safetensors file: the size of its header, the header, then tensor after tensor."""
    # The largest elements first, so that all are aligned.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        tensor = tensors[name]
        start, end = end, end + tensor.shape.numel() * tensor.dtype.itemsize
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _HEADER_BYTES:
        raise BadCheckpoint(
            path=path,
            problem=f"names and shapes take {len(text)} bytes, expected {_HEADER_BYTES} at most",
        )
    yield len(text).to_bytes(8, "little")
    yield text
    for name in names:
        tensor = tensors[name]
        values = tensor.torch_tensor() if isinstance(tensor, SambaTensor) else tensor
        try:
            flat = readable(to_torch(values), name).detach().contiguous().reshape(-1)
        except UnreadableTensor as error:
            raise BadCheckpoint(path=path, problem=f"not written: {error}") from None
        if flat.numel():
            bytes_of: Any = flat.view(torch.uint8).numpy().data
            yield bytes_of


def _regions(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by region name; the first of those that share one."""
    regions: dict[str, torch.Tensor] = {}
    for path, tensor in model.state_dict(keep_vars=True).items():
        regions.setdefault(_region(model, path, tensor), tensor)
    return regions


def _region(model: nn.Module, path: str, tensor: torch.Tensor) -> str:
    return getattr(tensor, "sn_region_name", "") or join_name(root_of(model), path)


def load_sharded_checkpoint(
    model: nn.Module,
    path: str | PathLike[str],
    ignore_dtype_mismatch: bool = False,
    strict: bool = True,
) -> LoadResult:
    """Loads the weights of a checkpoint folder into a model, lazy ones included.

    The folder holds an index, ``model.safetensors.index.json`` or
    ``pytorch_model.bin.index.json``, that says which file has which weight, or a single
    ``model.safetensors`` or ``pytorch_model.bin``. A file is in memory only while it is read.
    Nothing in it is executed.

    Args:
        model: The model; keys are its attribute paths or its names on the device.
        path: The folder, or one of these files.
        ignore_dtype_mismatch: Whether weights of another dtype are cast.
        strict: Whether keys without a partner are an error.

    Returns:
        Keys without a partner.

    Raises:
        BadCheckpoint: There is no checkpoint, a file of it is damaged, or it does not fit. Every
            file is looked at before the first tensor is written: the model is then as it was.
        MissingPackage: It holds safetensors, and that package is not installed.
    """
    place = _place(path)
    try:
        files = _files(place)
        forms = _forms(files)
        targets = _targets(model)
        unexpected = [key for key in forms if key not in targets]
        matched = {id(targets[key]) for key in forms if key in targets}
        state = model.state_dict(keep_vars=True)
        missing = [key for key, target in state.items() if id(target) not in matched]
        _check_fit(targets, forms, ignore_dtype_mismatch)
        if strict and (missing or unexpected):
            raise BadCheckpoint(
                path=str(place),
                problem=f"the model's {_listed(missing)} are missing, and the checkpoint's "
                f"{_listed(unexpected)} are not in the model; strict=False lets that pass",
            )
        for file in files:
            for key, values in _load(file).items():
                if key in targets:
                    with torch.no_grad():
                        targets[key].copy_(to_torch(values))
    except OSError as error:
        raise BadCheckpoint(
            path=str(error.filename or place), problem=f"cannot be read: {error.strerror or error}"
        ) from None
    return LoadResult(missing, unexpected)


def read_checkpoint(path: str | PathLike[str]) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint by their keys, without a model.

    Args:
        path: A folder or file as :func:`load_sharded_checkpoint` takes it.

    Raises:
        BadCheckpoint: There is no checkpoint, or a file of it is damaged.
        MissingPackage: It holds safetensors, and that package is not installed.
    """
    place = _place(path)
    try:
        files = _files(place)
        _forms(files)
        return {key: to_torch(values) for file in files for key, values in _load(file).items()}
    except OSError as error:
        raise BadCheckpoint(
            path=str(error.filename or place), problem=f"cannot be read: {error.strerror or error}"
        ) from None


def _place(path: str | PathLike[str]) -> Path:
    try:
        return Path(path)
    except TypeError:
        raise ArgumentError(
            where="a checkpoint's path",
            found=described(path),
            wanted="the path of a file or folder",
        ) from None


def _listed(keys: list[str]) -> str:
    return f"[{some_of([literal(key) for key in keys], most=_LISTED)}]" if keys else "none"


def _targets(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by attribute path, and by region name where no path is like it."""
    return {**_regions(model), **model.state_dict(keep_vars=True)}


def _files(place: Path) -> list[Path]:
    if place.is_file() and not place.name.endswith(".index.json"):
        return [place]
    folder = place if place.is_dir() else place.parent
    names = _INDICES if place.is_dir() else (place.name,)
    for name in names:
        if (folder / name).is_file():
            return _of_index(folder / name)
    for name in _SINGLE:
        if place.is_dir() and (folder / name).is_file():
            return [folder / name]
    if not place.is_dir():
        raise BadCheckpoint(path=str(place), problem="found no checkpoint: there is no such file")
    raise BadCheckpoint(
        path=str(place),
        problem=f"found no checkpoint; expected one of {', '.join((*_INDICES, *_SINGLE))}",
    )


def _of_index(index: Path) -> list[Path]:
    try:
        with index.open("rb") as file:
            text = file.read(_HEADER_BYTES + 1)
        if len(text) > _HEADER_BYTES:
            raise NotJson(f"it has more than {_HEADER_BYTES} bytes")
        weights = parse_json(text)
        weights = weights.get("weight_map") if isinstance(weights, dict) else None
        if not isinstance(weights, dict) or not all(isinstance(v, str) for v in weights.values()):
            raise NotJson('it must hold {"weight_map": {"name of a tensor": "name of a file"}}')
    except NotJson as error:
        raise BadCheckpoint(
            path=str(index), problem=f"it is not a valid checkpoint index: {error}"
        ) from None
    names = sorted(set(weights.values()))
    for name in names:
        # A name alone leads nowhere else. Links are followed: caches of downloads are made of them.
        if not _is_name(name) or not os.path.isfile(index.parent / name):
            raise BadCheckpoint(
                path=str(index), problem=f"it names {literal(name)}, which is not in its folder"
            )
    return [index.parent / name for name in names]


def _is_name(name: str) -> bool:
    return os.path.basename(name) == name and name not in ("", ".", "..") and "\0" not in name


def _forms(files: Sequence[Path]) -> dict[str, tuple[Path, torch.dtype, torch.Size]]:
    """What all files hold, before anything of it is used.

    Raises:
        BadCheckpoint: If a file is damaged, or two of them hold the same.
    """
    forms: dict[str, tuple[Path, torch.dtype, torch.Size]] = {}
    for file in files:
        for key, (dtype, shape) in _forms_of(file).items():
            if key in forms:
                raise BadCheckpoint(
                    path=str(file), problem=f"{literal(key)} is in {forms[key][0].name} as well"
                )
            forms[key] = (file, dtype, torch.Size(shape))
    return forms


def _forms_of(file: Path) -> dict[str, tuple[torch.dtype, Sequence[int]]]:
    if file.suffix != ".safetensors":
        return {key: (values.dtype, values.shape) for key, values in _load(file).items()}
    with _safetensors(file, "no safetensors file"):
        package = importlib.import_module("safetensors")
        with package.safe_open(str(file), framework="pt") as opened:
            slices = {key: opened.get_slice(key) for key in opened.keys()}  # noqa: SIM118  # no dict
            named = {key: (s.get_dtype(), s.get_shape()) for key, s in slices.items()}
    unknown = [f"{quoted(key)} has dtype {d}" for key, (d, _) in named.items() if d not in _DTYPES]
    if unknown:
        raise BadCheckpoint(
            path=str(file),
            problem=f"{some_of(unknown, most=_LISTED)}, expected one of {', '.join(_DTYPES)}",
        )
    return {key: (_DTYPES[dtype], shape) for key, (dtype, shape) in named.items()}


@contextmanager
def _safetensors(file: Path, problem: str) -> Iterator[None]:
    """Inside, what the package safetensors cannot read is an error that names the file."""
    try:
        yield
    except ModuleNotFoundError:
        raise MissingPackage(what=str(file), package="safetensors", extra="checkpoint") from None
    except OSError:
        raise
    except Exception as error:
        raise_error_of_handler(error)
        raise BadCheckpoint(
            path=str(file), problem=f"{problem}: {quoted(str(error), most=200)}"
        ) from None


def _load(file: Path) -> Mapping[str, torch.Tensor]:
    if file.suffix == ".safetensors":
        with _safetensors(file, "safetensors cannot load it"):
            return importlib.import_module("safetensors.torch").load_file(str(file))
    return read_pickled(file)


def read_pickled(file: Path, mmap: bool = True) -> Mapping[str, torch.Tensor]:
    """A dict of tensors that ``torch.save`` wrote; nothing in the file is executed.

    Args:
        file: The file.
        mmap: Whether the tensors are read where they are used, which the oldest form does not
            allow.

    Raises:
        BadCheckpoint: If torch cannot load it, or it holds something else.
    """
    loaded = load_pickle(file, mmap=mmap)
    if not isinstance(loaded, Mapping) or not all(
        isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in loaded.items()
    ):
        raise BadCheckpoint(path=str(file), problem=_no_state(file, loaded))
    try:
        return {key: readable(values, key) for key, values in loaded.items()}
    except UnreadableTensor as error:
        raise BadCheckpoint(path=str(file), problem=str(error)) from None


def _no_state(file: Path, loaded: Any) -> str:
    """What a file holds instead of tensors by name, and which of its parts may be meant."""
    problem = "it holds no dict of tensors by name"
    if not isinstance(loaded, Mapping):
        return problem
    texts = [key for key in loaded if isinstance(key, str)]
    states = [key for key in texts if isinstance(loaded[key], Mapping)]
    if not states:
        return problem
    return (
        f"{problem}, but a dict with {some_of([literal(key) for key in texts], most=_LISTED)}. "
        "Give a file of the model's state_dict() alone, for instance of "
        f"torch.load({literal(file.name)})[{literal(states[0])}]"
    )


def load_pickle(file: Path, *, mmap: bool = True) -> Any:
    """What ``torch.save`` wrote; nothing in the file is executed.

    Args:
        file: The file.
        mmap: As for :func:`read_pickled`.

    Raises:
        BadCheckpoint: If torch cannot load it.
    """
    try:
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:
        raise_error_of_handler(error)
        raise BadCheckpoint(
            path=str(file), problem=f"torch cannot load it ({_reason(error)})"
        ) from None


def _reason(error: Exception) -> str:
    """The line of torch's message that says why, without its advice to load with all rights."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reasons = [line for line in lines if not line.startswith(_ADVICE)] or ["no reason given"]
    return quoted(reasons[0])


def _check_fit(
    targets: Mapping[str, torch.Tensor],
    forms: Mapping[str, tuple[Path, torch.dtype, torch.Size]],
    ignore_dtype: bool,
) -> None:
    """Raise unless everything in the files has the shape and dtype of the model's."""
    problems: dict[str, str] = {}
    for key, (file, dtype, shape) in forms.items():
        target = targets.get(key)
        if target is None or (target.shape == shape and (ignore_dtype or target.dtype == dtype)):
            continue
        casts = "" if target.shape != shape else "; ignore_dtype_mismatch=True casts it"
        problems[
            f"{quoted(key)} has shape {literal(list(shape))} {dtype}, the model wants "
            f"{list(target.shape)} {target.dtype}{casts}"
        ] = str(file)
    if problems:
        raise BadCheckpoint(
            path=next(iter(problems.values())), problem=some_of(list(problems), most=_LISTED)
        )
