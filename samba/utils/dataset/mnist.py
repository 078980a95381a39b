"""MNIST from its idx files, without torchvision.

The idx format: two zero bytes, a byte for the element type (8: uint8), a byte for the number of
dimensions, each size as a big-endian 32-bit integer, then the elements.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import zlib
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from pef_schema.errors import quoted
from samba.errors import ArgumentError, SambaError

__all__ = [
    "IdxError",
    "IdxUnreadable",
    "Mnist",
    "dataset_transform",
    "prepare_dataloader",
    "read_idx",
]

MEAN, STD = 0.1307, 0.3081
"""Mean and standard deviation of the training pixels, scaled to 0..1."""

_LARGEST = 2**30
"""Bytes that a packed file may hold: MNIST has 47 million, the largest set of its form 550."""

_FOLDER_KEYS = ("data_dir", "data_folder")
_FILES = {
    True: ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    False: ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


class IdxError(SambaError):
    """An idx file is missing or not what it should be.

    Args:
        path: The file or folder.
        found: What was found there.
        wanted: What should be there.
    """

    def __init__(self, *, path: str | os.PathLike[str], found: str, wanted: str) -> None:
        self.path, self.found, self.wanted = os.fspath(path), found, wanted
        super().__init__(
            f"{quoted(self.path, 1024)}: found {found}, expected {wanted}. "
            "Put the four MNIST files there, packed with gzip or not."
        )


class IdxUnreadable(IdxError, OSError):
    """The system does not let an idx file be read."""


def read_idx(path: str | os.PathLike[str]) -> np.ndarray:
    """Reads an idx file of bytes, packed with gzip or not.

    Args:
        path: The file.

    Returns:
        A new uint8 array.

    Raises:
        IdxError: The file is not an idx file of bytes, or its length does not fit its sizes.
        IdxUnreadable: It cannot be read; an ``OSError`` too.
    """
    try:
        raw = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise IdxUnreadable(path=path, found=reason, wanted="an idx file") from None
    if raw[:2] == b"\x1f\x8b":
        try:
            with gzip.open(io.BytesIO(raw)) as packed:
                raw = packed.read(_LARGEST + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise IdxError(path=path, found=f"{error}", wanted="an intact gzip file") from None
        if len(raw) > _LARGEST:
            raise IdxError(
                path=path, found=f"more than {_LARGEST} bytes", wanted="a set of MNIST's form"
            )
    if len(raw) < 4 or raw[:3] != b"\0\0\x08" or len(raw) < 4 + 4 * raw[3]:
        raise IdxError(path=path, found=f"{raw[:4]!r} at its start", wanted="an idx file of bytes")
    start = 4 + 4 * raw[3]
    shape = tuple(int(size) for size in np.frombuffer(raw[4:start], dtype=">u4"))
    if len(raw) - start != math.prod(shape):
        raise IdxError(
            path=path,
            found=f"{len(raw) - start} bytes of data",
            wanted=f"{math.prod(shape)} for the sizes {shape} in its header",
        )
    return np.frombuffer(raw, dtype=np.uint8, offset=start).reshape(shape).copy()


class Mnist(Dataset[tuple[torch.Tensor, int]]):
    """Images and labels of MNIST or a set in its format.

    Args:
        folder: Holds the files, itself or in ``MNIST/raw``.
        train: Whether the training files are read, or the test files.
        transform: Applied to each image, a uint8 array of shape [28, 28].

    Raises:
        IdxError: A file is missing, broken, or does not fit the other.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        train: bool = True,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        images, labels = _FILES[train]
        self.data = torch.from_numpy(read_idx(_find(Path(folder), images)))
        self.targets = torch.from_numpy(read_idx(_find(Path(folder), labels))).long()
        self.transform = transform
        if len(self.data) != len(self.targets):
            raise IdxError(
                path=folder,
                found=f"{len(self.data)} images and {len(self.targets)} labels",
                wanted="as many labels as images",
            )

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.data[index]
        if self.transform is not None:
            image = self.transform(image.numpy())
        return image, int(self.targets[index])


def _find(folder: Path, name: str) -> Path:
    for parent in (folder, folder / "MNIST" / "raw"):
        for candidate in (parent / name, parent / f"{name}.gz"):
            if candidate.is_file():
                return candidate
    raise IdxError(path=folder, found="neither in it nor in MNIST/raw", wanted=name)


def dataset_transform(args: Namespace | Mapping[str, Any]) -> Callable[[Any], torch.Tensor]:
    """Makes the function that turns an image into the input of a linear layer.

    Pixels are scaled to 0..1, normalised with the mean and deviation of MNIST, flattened, and
    zeros are appended up to ``num_features``.

    Args:
        args: Parsed arguments, or a dict of them; ``num_features`` is read, 784 if absent.

    Returns:
        A function from an image (PIL image, array or tensor, bytes or floats in 0..1) to a
        float32 tensor of shape [num_features]. It raises ArgumentError for an image that has
        more pixels.

    Example:
        >>> dataset_transform({"num_features": 800})(np.zeros((28, 28), np.uint8)).shape
        torch.Size([800])
    """
    settings = vars(args) if isinstance(args, Namespace) else args
    features = settings.get("num_features")
    return _Transform(784 if features is None else int(features))


class _Transform:
    """A class and not a closure, so that loader processes can be started with it."""

    def __init__(self, num_features: int) -> None:
        self.num_features = num_features

    def __call__(self, image: Any) -> torch.Tensor:
        pixels = image if isinstance(image, torch.Tensor) else torch.from_numpy(np.array(image))
        scaled = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels.float()
        flat = ((scaled - MEAN) / STD).flatten()
        if flat.numel() > self.num_features:
            raise ArgumentError(
                where="dataset_transform(num_features)",
                found=f"{self.num_features} for an image of {flat.numel()} pixels",
                wanted=f"{flat.numel()} or more",
            )
        return torch.nn.functional.pad(flat, (0, self.num_features - flat.numel()))


def prepare_dataloader(
    params: Mapping[str, Any],
    train_dataset: Dataset[Any] | None = None,
    eval_dataset: Dataset[Any] | None = None,
) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Makes the loaders of the training and the test set.

    Training batches come in a random order. The last batch is left out where it would be
    smaller, because shapes are static on the device.

    Args:
        params: ``batch_size`` and, unless the sets are given, ``data_dir`` or ``data_folder``,
            and ``num_features`` for the transform.
        train_dataset: The training set; MNIST if None.
        eval_dataset: The test set; MNIST if None.

    Returns:
        Loader of the training set, loader of the test set.

    Raises:
        ArgumentError: The folder is neither given nor the sets.
        IdxError: A file is missing or broken.
    """
    if train_dataset is None or eval_dataset is None:
        folder = next((params[key] for key in _FOLDER_KEYS if params.get(key)), None)
        if folder is None:
            raise ArgumentError(
                where="prepare_dataloader(params)",
                found=f"no folder in {sorted(params)}",
                wanted=f"one of {', '.join(_FOLDER_KEYS)}",
            )
        transform = dataset_transform(params)
        train_dataset = train_dataset or Mnist(folder, train=True, transform=transform)
        eval_dataset = eval_dataset or Mnist(folder, train=False, transform=transform)
    size = int(params.get("batch_size") or 1)
    return (
        DataLoader(train_dataset, batch_size=size, shuffle=True, drop_last=True),
        DataLoader(eval_dataset, batch_size=size, shuffle=False, drop_last=True),
    )
