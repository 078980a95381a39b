"""MNIST from idx files, without torchvision."""

from __future__ import annotations

import gzip
import struct
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch

from samba.errors import ArgumentError
from samba.utils.dataset import mnist
from samba.utils.dataset.mnist import IdxError, Mnist, dataset_transform, prepare_dataloader


def write_idx(path: Path, array: np.ndarray, packed: bool = False) -> None:
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(
        f">{array.ndim}I", *array.shape
    )
    content = header + array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if packed else content)


def write_set(folder: Path, packed: bool = False) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    arrays = {}
    for name, count in (("train", 20), ("t10k", 10)):
        arrays[name] = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        suffix = ".gz" if packed else ""
        write_idx(folder / f"{name}-images-idx3-ubyte{suffix}", arrays[name], packed)
        write_idx(folder / f"{name}-labels-idx1-ubyte{suffix}", np.arange(count) % 10, packed)
    return arrays


@pytest.mark.parametrize("layout", ["flat", "torchvision", "packed"])
def test_loaders_give_the_data(tmp_path, layout):
    folder = tmp_path / "MNIST" / "raw" if layout == "torchvision" else tmp_path
    arrays = write_set(folder, packed=layout == "packed")
    params = {"data_dir": str(tmp_path), "batch_size": 4, "num_features": 784}
    train, test = prepare_dataloader(params)
    assert (len(train), len(test)) == (5, 2)
    images, labels = next(iter(test))
    expected = (torch.from_numpy(arrays["t10k"][:4]).float() / 255 - 0.1307) / 0.3081
    assert torch.equal(images, expected.reshape(4, 784))
    assert labels.tolist() == [0, 1, 2, 3]
    assert labels.dtype == torch.int64
    seen = sorted(label for _, batch in train for label in batch.tolist())
    assert seen == sorted(list(range(10)) * 2)


def test_transform_pads_and_takes_every_kind_of_image():
    pixels = np.arange(784, dtype=np.uint8).reshape(28, 28)
    padded = dataset_transform({"num_features": 800})(pixels)
    assert padded.shape == (800,)
    assert padded[784:].abs().sum() == 0
    assert padded[5].item() == pytest.approx((5 / 255 - 0.1307) / 0.3081, rel=1e-6)
    transform = dataset_transform(Namespace(num_features=784, batch_size=1))
    for image in (torch.from_numpy(pixels), (torch.from_numpy(pixels).float() / 255)[None]):
        assert torch.allclose(transform(image), padded[:784], rtol=1e-6)
    assert dataset_transform({})(pixels).shape == (784,)
    with pytest.raises(ArgumentError, match="found 10 for an image of 784 pixels"):
        dataset_transform({"num_features": 10})(pixels)


def test_loaders_of_given_sets():
    data = torch.utils.data.TensorDataset(torch.ones(6, 2), torch.zeros(6))
    train, test = prepare_dataloader({"batch_size": 3}, data, data)
    assert (len(train), len(test)) == (2, 2)


# Other tests start jax by themselves; a start by this project leaves loaders alone.
@pytest.mark.filterwarnings("ignore:os.fork\\(\\) was called:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_loaders_work_in_processes(tmp_path):
    write_set(tmp_path)
    images = Mnist(tmp_path, transform=dataset_transform({}))
    loader = torch.utils.data.DataLoader(images, batch_size=10, num_workers=1)
    assert [batch.shape for batch, _ in loader] == [(10, 784), (10, 784)]


def test_without_transform_images_are_bytes(tmp_path):
    arrays = write_set(tmp_path)
    image, label = Mnist(tmp_path, train=False)[3]
    assert np.array_equal(image.numpy(), arrays["t10k"][3])
    assert label == 3


def test_missing_and_broken_files(tmp_path):
    with pytest.raises(ArgumentError, match=r"no folder in \['batch_size'\]"):
        prepare_dataloader({"batch_size": 1})
    with pytest.raises(IdxError, match="expected train-images-idx3-ubyte"):
        prepare_dataloader({"data_folder": tmp_path})
    write_set(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    whole = path.read_bytes()
    for content, wanted in (
        (whole[:-1], "15680 for the sizes"),
        (whole[:10], "an idx file of bytes"),
        (b"", "an idx file of bytes"),
        (b"PK" + whole, "an idx file of bytes"),
        (gzip.compress(whole)[:-9], "an intact gzip file"),
    ):
        path.write_bytes(content)
        with pytest.raises(IdxError, match=wanted):
            Mnist(tmp_path)
    write_idx(path, np.zeros((3, 28, 28)))
    with pytest.raises(IdxError, match="found 3 images and 20 labels"):
        Mnist(tmp_path)
    assert mnist.MEAN == 0.1307
