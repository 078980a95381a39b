"""SambaLoader: order, names, hooks; every way in which an epoch can end."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from samba.errors import ArgumentError
from samba.sambaloader import DataLoaderException, SambaLoader
from samba.sambatensor import SambaTensor
from tests.api.covers import covers
from tests.processes import SECONDS, SECONDS_TO_END, came, joined
from tests.warm import finished

NAMES = ["image", "label"]


def _batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.full((2, 3), float(i)), torch.full((2,), i)) for i in range(count)]


def _threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "SambaLoader"]


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    yield
    if _threads():  # of a loader in a circle; collecting takes longer than most of these tests
        gc.collect()
    deadline = time.monotonic() + SECONDS_TO_END
    while _threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _threads()


@covers("samba.sambaloader.SambaLoader", ".SambaLoader(names)")
def test_batches_come_in_order_as_named_sambatensors() -> None:
    loader = SambaLoader(_batches(25), NAMES, maxsize=3)
    seen = list(loader)
    assert len(loader) == len(seen) == 25
    for i, (image, label) in enumerate(seen):
        assert isinstance(image, SambaTensor) and isinstance(label, SambaTensor)
        assert (image.sn_name, label.sn_name) == ("image", "label")
        assert image[0, 0].item() == i and label[0].item() == i


def test_a_torch_dataloader_gives_the_same_batches_every_epoch() -> None:
    data = TensorDataset(torch.arange(12.0).reshape(6, 2), torch.arange(6))
    source = DataLoader(data, batch_size=2)
    loader = SambaLoader(source, NAMES)
    for _ in range(2):
        for (image, label), (x, y) in zip(loader, source, strict=True):
            assert torch.equal(image.torch(), x) and torch.equal(label.torch(), y)


def test_next_and_iter() -> None:
    loader = SambaLoader(_batches(2), NAMES)
    it = iter(loader)
    assert iter(it) is it
    assert [next(it)[1][0].item(), next(it)[1][0].item()] == [0, 1]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(it)
    assert next(loader)[1][0].item() == 0
    assert next(loader)[1][0].item() == 1
    with pytest.raises(StopIteration):
        next(loader)
    assert next(loader)[1][0].item() == 0


def test_tensors_share_the_memory_of_the_loader() -> None:
    batches = _batches(1)
    (image, _), *_ = SambaLoader(batches, NAMES)
    assert image.data_ptr() == batches[0][0].data_ptr()


def test_a_sambatensor_of_another_name_is_renamed_without_changing_it() -> None:
    source = SambaTensor(torch.ones(2), name="before")
    ((batch,),) = SambaLoader([[source]], ["after"])
    assert (batch.sn_name, source.sn_name) == ("after", "before")


@pytest.mark.parametrize(
    "hook",
    [
        lambda b: b[0],
        lambda b: [b[0]],
        lambda b: (b[0].numpy(),),
        lambda b: {"image": b[0], "x": 1},
    ],
)
def test_a_hook_selects_items_in_any_form(hook: Any) -> None:
    seen = list(SambaLoader(_batches(2), ["image"], function_hook=hook))
    assert [len(batch) for batch in seen] == [1, 1]
    assert seen[1][0].sn_name == "image" and seen[1][0].shape == (2, 3)


def test_numbers_arrays_and_none_become_what_run_takes() -> None:
    ((a, b, c),) = SambaLoader([(np.arange(3), None, 4)], ["a", "b", "c"])
    assert torch.equal(a.torch(), torch.arange(3)) and b is None and c.item() == 4


def test_the_original_batch_is_returned_on_request() -> None:
    batches = _batches(1)
    ((tensors, original),) = SambaLoader(batches, NAMES, return_original_batch=True)
    assert original is batches[0] and [t.sn_name for t in tensors] == NAMES


def test_with_one_name_the_tensor_itself_comes_with_the_original_batch() -> None:
    batches = _batches(1)
    loader = SambaLoader(
        batches, ["image"], function_hook=lambda b: [b[0]], return_original_batch=True
    )
    ((image, original),) = loader
    assert isinstance(image, SambaTensor) and image.size(0) == 2
    assert original[1].size(0) == 2


class _Faulty(Dataset):
    def __init__(self, bad: int) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == self.bad:
            raise KeyError("sample 3 is gone")
        return torch.zeros(3), torch.tensor(index)


def test_a_failing_loader_is_reported_after_the_batches_before_it() -> None:
    it = iter(SambaLoader(DataLoader(_Faulty(3)), NAMES))
    assert [next(it)[1].item() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(DataLoaderException, match=r"batch 3: .*KeyError: 'sample 3 is gone'") as e:
        next(it)
    assert isinstance(e.value.__cause__, KeyError) and e.value.batch == 3
    with pytest.raises(StopIteration):
        next(it)


def test_failing_batches_are_left_out_on_request(caplog: pytest.LogCaptureFixture) -> None:
    loader = SambaLoader(DataLoader(_Faulty(3)), NAMES, ignore_dataloader_exception=True)
    with caplog.at_level(logging.WARNING, "samba"):
        assert [label.item() for _, label in loader] == [0, 1, 2, 4]
    assert "left out" in caplog.text and "sample 3 is gone" in caplog.text


class _AlwaysFails:
    def __init__(self, length: int | None) -> None:
        if length is not None:
            self.__class__ = type("_Sized", (_AlwaysFails,), {"__len__": lambda self: length})

    def __iter__(self) -> _AlwaysFails:
        return self

    def __next__(self) -> Any:
        raise OSError("no disk")


@pytest.mark.parametrize("length", [None, 4])
def test_a_loader_that_always_fails_ends_when_failures_are_ignored(length: int | None) -> None:
    assert list(SambaLoader(_AlwaysFails(length), NAMES, ignore_dataloader_exception=True)) == []


def test_a_failing_hook_is_reported_or_left_out() -> None:
    def hook(batch: Any) -> Any:
        if batch[1][0] == 1:
            raise StopIteration("no")
        return batch

    with pytest.raises(DataLoaderException, match=r"batch 1: .* StopIteration: no"):
        list(SambaLoader(_batches(3), NAMES, function_hook=hook))
    loader = SambaLoader(
        iter(_batches(3)), NAMES, function_hook=hook, ignore_dataloader_exception=True
    )
    assert [label[0].item() for _, label in loader] == [0, 2]


def test_what_cannot_be_iterated_is_reported() -> None:
    with pytest.raises(DataLoaderException, match="TypeError: 'int' object is not iterable"):
        next(iter(SambaLoader(3, NAMES)))


@pytest.mark.parametrize(
    ("batch", "found"),
    [
        ((torch.ones(1),), r"1 item\(s\)"),
        (torch.ones(2), r"1 item\(s\)"),
        ({"image": torch.ones(1)}, "no label"),
        ((torch.ones(1), "cat"), "what torch cannot take"),
    ],
)
def test_batches_that_do_not_fit_the_names_are_errors(batch: Any, found: str) -> None:
    loader = SambaLoader([batch], NAMES, ignore_dataloader_exception=True)
    with pytest.raises(DataLoaderException, match=f"found {found}.*each of image, label"):
        next(iter(loader))


def test_a_slow_loader_is_reported() -> None:
    begun, release = threading.Event(), threading.Event()

    def slow() -> Iterator[Any]:
        yield _batches(1)[0]
        begun.set()
        release.wait(SECONDS)

    it = iter(SambaLoader(slow(), NAMES, timeout=0.5))
    came(begun)
    next(it)
    with pytest.raises(DataLoaderException, match=r"batch 1: the data loader gave nothing for 0.5"):
        next(it)
    release.set()
    joined(*_threads())
    with pytest.raises(StopIteration):
        next(it)


def test_leaving_the_loop_ends_the_thread() -> None:
    for _ in SambaLoader(_batches(100), NAMES, maxsize=1):
        assert len(_threads()) == 1
        break
    assert not _threads()


def test_losing_the_iterator_ends_the_thread() -> None:
    it = iter(SambaLoader(_batches(100), NAMES, maxsize=1))
    next(it)
    holder: list[Any] = [it]
    holder.append(holder)  # only a garbage collection finds this
    del it, holder
    gc.collect(1)  # what was made just now: among all that there is, it takes half a second
    assert not _threads()


def test_no_more_is_fetched_than_fits() -> None:
    fetched: list[int] = []

    def source() -> Iterator[Any]:
        for i, batch in enumerate(_batches(50)):
            fetched.append(i)
            yield batch

    it = iter(SambaLoader(source(), NAMES, maxsize=2))
    next(it)
    time.sleep(0.05)
    assert len(fetched) <= 4  # one taken, two waiting, one in hand
    it.close()


def test_several_epochs_at_once() -> None:
    loader = SambaLoader(_batches(10), NAMES, maxsize=2)
    pairs = [(a[1][0].item(), b[1][0].item()) for a, b in zip(loader, loader, strict=True)]
    assert pairs == [(i, i) for i in range(10)]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"names": "image"}, "a list of names"),
        ({"names": []}, "1 or more"),
        ({"names": ["a", "a"]}, "different names"),
        ({"names": ["a", ""]}, "a list of names"),
        ({"maxsize": 0}, "1 batch or more"),
        ({"timeout": 0}, "more than 0 seconds"),
        ({"function_hook": 3}, "a function of a batch"),
        ({"names": None}, r"names\): found NoneType None, expected a list of names"),
        ({"names": 5}, r"names\): found int 5, expected a list of names"),
        ({"maxsize": "8"}, r"maxsize\): found str '8', expected 1 batch or more"),
        ({"maxsize": 2.5}, r"maxsize\): found float 2.5"),
        ({"timeout": "9"}, r"timeout\): found str '9', expected more than 0 seconds"),
        ({"timeout": None}, r"timeout\): found NoneType"),
        ({"return_original_batch": "no"}, r"return_original_batch\): found str 'no'"),
        ({"ignore_dataloader_exception": "no"}, r"dataloader_exception\): found str 'no'"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        SambaLoader([], **{"names": ["a"], **arguments})


def test_a_loader_without_length_says_so() -> None:
    with pytest.raises(TypeError):
        len(SambaLoader(iter([]), NAMES))


@pytest.mark.parametrize(
    "ending",
    [
        "",
        pytest.param("raise SystemExit(3)", marks=pytest.mark.slow),
        pytest.param("1 / 0", marks=pytest.mark.slow),
    ],
)
def test_a_process_ends_while_an_epoch_waits(ending: str) -> None:
    code = f"""
import torch, samba, threading
from samba.sambaloader import SambaLoader
it = iter(SambaLoader([(torch.ones(1),)] * 100, ["x"], maxsize=1))
next(it)
stuck = threading.Event()
def slow():
    yield (torch.ones(1),)
    stuck.wait(1000)
other = iter(SambaLoader(slow(), ["x"]))
next(other)
print("ready", flush=True)
{ending}
"""
    done = finished([sys.executable, "-c", code])
    assert done.stdout == "ready\n"
    assert done.returncode == {"": 0, "1 / 0": 1}.get(ending, 3)


@pytest.mark.parametrize("loaders", [{}, {"dataloader": [1], "torch_loader": [1]}])
def test_one_data_loader_is_wanted(loaders):
    with pytest.raises(ArgumentError, match="torch_loader is another name of it"):
        SambaLoader(**loaders, names=["x"])
