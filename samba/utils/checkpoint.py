"""Checkpoints: saved tensor by tensor, loaded file by file, from several files too."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from pef_schema.atomic import write_atomically
from pef_schema.errors import SambaError
from samba.errors import MissingPackage
from samba.sambatensor import SambaTensor, to_torch
from samba.support.naming import join_name, root_of

__all__ = ["BadCheckpoint", "LoadResult", "load_sharded_checkpoint", "save_checkpoint"]

_INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SINGLE = ("model.safetensors", "pytorch_model.bin")
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Names of element types in safetensors files."""


class BadCheckpoint(SambaError, ValueError):
    """A checkpoint is not one, or does not fit the model.

    Args:
        path: The file or folder.
        problem: What was found and what was wanted, as a sentence.
    """

    def __init__(self, *, path: str, problem: str) -> None:
        self.path = path
        super().__init__(f"{path}: {problem}")


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
    tensors = _regions(model)
    bad = [f"{name} has {t.dtype}" for name, t in tensors.items() if t.dtype not in _DTYPES]
    if bad:
        raise BadCheckpoint(
            path=str(path), problem=f"{', '.join(bad)}, which safetensors files cannot hold"
        )
    write_atomically(str(path), _chunks(tensors))


def _chunks(tensors: Mapping[str, torch.Tensor]) -> Iterator[bytes]:
    """A safetensors file: the size of its header, the header, then tensor after tensor."""
    # The largest elements first, so that all are aligned.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        tensor = tensors[name]
        start, end = end, end + tensor.shape.numel() * tensor.dtype.itemsize
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for name in names:
        tensor = tensors[name]
        values = tensor.torch_tensor() if isinstance(tensor, SambaTensor) else tensor
        flat = to_torch(values).detach().contiguous().reshape(-1)
        if flat.numel():
            yield flat.view(torch.uint8).numpy().data


def _regions(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by region name; the first of those that share one."""
    found: dict[str, torch.Tensor] = {}
    for path, tensor in model.state_dict(keep_vars=True).items():
        found.setdefault(_region(model, path, tensor), tensor)
    return found


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
        BadCheckpoint: There is no checkpoint, or it does not fit. The model may then be
            loaded in part.
        MissingPackage: It holds safetensors, and that package is not installed.
    """
    place = Path(path)
    targets = _targets(model)
    found: set[int] = set()
    unexpected: list[str] = []
    for file in _files(place):
        for key, values in _load(file).items():
            target = targets.get(key)
            if target is None:
                unexpected.append(key)
                continue
            _put(target, values, key, str(file), ignore_dtype_mismatch)
            found.add(id(target))
    missing = [
        key for key, target in model.state_dict(keep_vars=True).items() if id(target) not in found
    ]
    if strict and (missing or unexpected):
        raise BadCheckpoint(
            path=str(place),
            problem=f"the model's {missing or 'none'} are missing, and the checkpoint's "
            f"{unexpected or 'none'} are not in the model; strict=False lets that pass",
        )
    return LoadResult(missing, unexpected)


def _targets(model: nn.Module) -> dict[str, torch.Tensor]:
    targets: dict[str, torch.Tensor] = {}
    for key, tensor in model.state_dict(keep_vars=True).items():
        targets[key] = tensor
    for key, tensor in model.state_dict(keep_vars=True).items():
        targets.setdefault(_region(model, key, tensor), tensor)
    return targets


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
    raise BadCheckpoint(
        path=str(place),
        problem=f"found no checkpoint; wanted one of {', '.join((*_INDICES, *_SINGLE))}",
    )


def _of_index(index: Path) -> list[Path]:
    try:
        weights = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted({str(name) for name in weights.values()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadCheckpoint(path=str(index), problem=f"it is no index ({error!r})") from None
    for name in names:
        if os.path.basename(name) != name or not (index.parent / name).is_file():
            raise BadCheckpoint(
                path=str(index), problem=f"it names {name!r}, which is no file in its folder"
            )
    return [index.parent / name for name in names]


def _load(file: Path) -> Mapping[str, torch.Tensor]:
    if file.suffix == ".safetensors":
        try:
            library = importlib.import_module("safetensors.torch")
        except ModuleNotFoundError:
            raise MissingPackage(
                what=str(file), package="safetensors", extra="checkpoint"
            ) from None
        return library.load_file(str(file))
    try:
        loaded: Any = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise BadCheckpoint(path=str(file), problem=f"torch cannot load it ({error})") from None
    if not isinstance(loaded, Mapping) or not all(
        isinstance(v, torch.Tensor) for v in loaded.values()
    ):
        raise BadCheckpoint(path=str(file), problem="it holds no dict of tensors")
    return loaded


def _put(
    target: torch.Tensor, values: torch.Tensor, key: str, file: str, ignore_dtype: bool
) -> None:
    values = to_torch(values)
    if target.shape != values.shape or (target.dtype != values.dtype and not ignore_dtype):
        raise BadCheckpoint(
            path=file,
            problem=f"{key} has shape {list(values.shape)} {values.dtype}, the model wants "
            f"{list(target.shape)} {target.dtype}"
            + ("" if target.shape != values.shape else "; ignore_dtype_mismatch=True casts it"),
        )
    with torch.no_grad():
        target.copy_(values)
