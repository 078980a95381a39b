"""Small handwritten-digit look-alikes in the files of the MNIST data set."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np


def write_mnist(folder: Path, train: int, test: int) -> None:
    """Write separable classes as idx files: a random template each, with noise.

    Args:
        folder: The data folder; the files lie in ``MNIST/raw`` below it.
        train, test: Numbers of images.
    """
    rng = np.random.default_rng(0)
    templates = 200.0 * (rng.random((10, 28, 28)) < 0.3)
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, count in (("train", train), ("t10k", test)):
        labels = rng.integers(0, 10, count).astype(np.uint8)
        images = templates[labels] + rng.normal(0, 25, (count, 28, 28))
        pixels = np.clip(images, 0, 255).astype(np.uint8)
        head = struct.pack(">iiii", 2051, count, 28, 28)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
        head = struct.pack(">ii", 2049, count)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())
