"""Weights of the host rest in a file after a load, and nobody can tell but by the memory."""

from __future__ import annotations

import copy
import errno
import io
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import samba
from samba.session import spilling
from samba.session.spilling import SPILL_VARIABLE, Spill, spill_weights
from samba.tensor.views import host_of
from tests.samba.session.loading import plain
from tests.samba.worlds import Pefs, Scene, World, deviations, sgd

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc/self/smaps")

SIZE = 1 << 20
"""Elements of a matrix of 4 MiB."""


@pytest.fixture(autouse=True)
def on_disk(tmp_path, monkeypatch):
    """Files lie in the test's folder, whatever file system that is."""
    monkeypatch.setenv(SPILL_VARIABLE, str(tmp_path))
    monkeypatch.setattr(spilling, "_file_system", lambda folder: "ext4")


def in_file(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory is a mapped file."""
    with torch._C.DisableTorchFunctionSubclass():
        place = host_of(tensor).data_ptr()
    return _mapping(place)[0].endswith("(deleted)")  # a file without a name


def resident(tensor: torch.Tensor) -> int:
    """Bytes of the mapping with a tensor that are in memory."""
    with torch._C.DisableTorchFunctionSubclass():
        place = host_of(tensor).data_ptr()
    return _mapping(place)[1]


def _mapping(place: int) -> tuple[str, int]:
    """Name and resident bytes of the mapping with an address."""
    name, here = "", False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first and not first.endswith(":"):
            start, end = (int(part, 16) for part in first.split("-"))
            here, name = start <= place < end, rest
        elif here and first == "Rss:":
            return name, 1024 * int(rest.split()[0])
    raise LookupError(hex(place))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(1024, 1024)
        self.narrow = nn.Linear(1024, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.narrow(self.wide(x).relu())
        return out.square().mean(), out


NET = World(
    name="spilled",
    model=Net,
    inputs=lambda: {"x": torch.linspace(-1, 1, 4096).reshape(4, 1024)},
    optimizer=sgd(momentum=0.0),
)


@pytest.fixture
def scene(pefs: Pefs) -> Scene:
    return pefs.loaded(NET)


def weight_of(scene: Scene) -> Any:
    return scene.model.wide.weight


def assert_steps_alike(scene: Scene) -> None:
    """A step of both begins with the same loss."""
    torch.testing.assert_close(scene.run()[0], scene.host_step()[0], rtol=1e-6, atol=0)


def assert_same_weight(scene: Scene) -> None:
    ours, theirs = samba.to_torch(weight_of(scene)).detach(), scene.host.wide.weight.detach()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-7)


@pytest.mark.parametrize("converted", [True, False])
def test_host_weights_take_no_memory_until_they_are_read(pefs, tmp_path, caplog, converted):
    scene = pefs.loaded(NET) if converted else plain(pefs.scene(NET))
    before = scene.host.wide.weight.detach().clone()
    assert in_file(weight_of(scene))
    assert resident(weight_of(scene)) == 0
    for _ in range(2):
        assert_steps_alike(scene)
    assert resident(weight_of(scene)) == 0  # runs read the device's
    assert "older-host-values" not in deviations(caplog)
    assert torch.equal(weight_of(scene).detach(), before)  # the values of the load, as always
    assert deviations(caplog).count("older-host-values") == converted
    assert resident(weight_of(scene)) >= 4 * SIZE
    assert not list(tmp_path.glob("sambaflow-weights-*"))  # a file without a name


def test_to_cpu_and_writes_on_the_host_are_as_ever(scene):
    scene.run()
    scene.host_step()
    samba.session.to_cpu(scene.model)
    assert not in_file(weight_of(scene))
    assert_same_weight(scene)
    with torch.no_grad():
        for model in (scene.model, scene.host):
            model.wide.weight.mul_(0.5)
    samba.session.to_rdu(scene.model)
    assert_steps_alike(scene)


def test_in_place_writes_reach_the_device_and_stay_in_the_process(scene):
    with torch.no_grad():
        for model in (scene.model, scene.host):
            model.wide.weight.mul_(2.0)
    assert in_file(weight_of(scene))
    samba.session.to_rdu(scene.model)
    assert_steps_alike(scene)
    samba.session.to_cpu(scene.model, inplace=True)
    assert in_file(weight_of(scene))
    assert_same_weight(scene)


def test_memory_that_somebody_else_has_stays(pefs):
    scene = pefs.scene(NET)
    kept = weight_of(scene).data
    scene.trace()
    assert not in_file(weight_of(scene))
    kept.fill_(3.0)
    with torch._C.DisableTorchFunctionSubclass():
        assert bool((weight_of(scene) == 3.0).all())


TAKES = {
    "views": lambda tensor: tensor[:1],
    "arrays": lambda tensor: tensor.detach().numpy(),
    "storages": lambda tensor: tensor.untyped_storage(),
    "states": lambda tensor: nn.ParameterDict({"a": tensor}).state_dict(),
}


@pytest.mark.parametrize("take", TAKES.values(), ids=TAKES)
def test_whatever_shares_memory_is_seen(take):
    tensor = nn.Parameter(torch.ones(SIZE))
    taken = take(tensor)
    assert spill_weights([tensor]) == 0
    del taken
    assert spill_weights([tensor]) == 4 * SIZE


def test_what_is_written_while_the_file_is_stays_in_memory():
    kept, written, shared = (nn.Parameter(torch.ones(SIZE)) for _ in range(3))
    with Spill([kept, written, shared]) as spill:
        with torch.no_grad():
            written.mul_(2.0)
        view = shared[:1]
        assert spill.take([kept, written, shared]) == 4 * SIZE
    del view
    assert [in_file(tensor) for tensor in (kept, written, shared)] == [True, False, False]
    assert bool((kept == 1).all())
    assert bool((written == 2).all())


def test_only_what_is_asked_for_moves():
    one, other = nn.Parameter(torch.ones(SIZE)), nn.Parameter(torch.ones(SIZE))
    with Spill([one, other]) as spill:
        assert spill.take([other, nn.Parameter(torch.ones(SIZE))]) == 4 * SIZE
    assert (in_file(one), in_file(other)) == (False, True)
    assert spill_weights([one]) == 4 * SIZE  # nothing of it is shared any more


def test_a_load_that_fails_leaves_weights_in_memory(pefs, tmp_path):
    scene = pefs.scene(NET)
    with pytest.raises(samba.errors.SambaError):
        samba.utils.trace_graph(scene.model, (), scene.optimizer, pef=scene.pef)
    assert not in_file(weight_of(scene))
    assert not list(tmp_path.glob("sambaflow-weights-*"))
    assert not [t for t in threading.enumerate() if t.name == "samba-spill"]
    scene.trace()
    assert in_file(weight_of(scene))


def test_a_backward_pass_that_has_begun_ends_as_it_would():
    tensor = nn.Parameter(torch.randn(SIZE))
    values = tensor.detach().clone()
    loss = tensor.square().sum()
    assert spill_weights([tensor]) == 4 * SIZE
    loss.backward()
    assert torch.equal(tensor.grad, 2 * values)


def test_one_tensor_twice_is_one_and_two_over_one_memory_stay():
    tensor = nn.Parameter(torch.ones(SIZE))
    assert spill_weights([tensor, tensor]) == 4 * SIZE
    tied = nn.Parameter(torch.ones(SIZE))
    other = nn.Parameter(tied.data)
    assert spill_weights([tied, other]) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_values_strides_and_flags_stay(dtype, memory_format):
    values = torch.randn(32, 64, 32, 32).to(dtype).to(memory_format=memory_format)
    tensor = nn.Parameter(values.clone(memory_format=torch.preserve_format))
    version = tensor._version
    assert spill_weights([tensor]) == values.numel() * values.element_size()
    assert in_file(tensor)
    assert torch.equal(tensor, values)
    assert tensor.stride() == values.stride()
    assert (tensor.requires_grad, tensor.is_leaf, tensor._version) == (True, True, version)
    tensor.square().sum().backward()
    assert torch.equal(tensor.grad, 2 * values)


def test_copies_pickles_and_saved_files_hold_the_values():
    tensor = nn.Parameter(torch.randn(SIZE))
    values = tensor.detach().clone()
    assert spill_weights([tensor]) == 4 * SIZE
    assert torch.equal(copy.deepcopy(tensor), values)
    file = io.BytesIO()
    torch.save({"tensor": tensor}, file)
    file.seek(0)
    assert torch.equal(torch.load(file)["tensor"], values)


def test_small_tensors_and_small_models_stay():
    assert spill_weights([nn.Parameter(torch.ones(SIZE // 2))]) == 0
    small = [nn.Parameter(torch.ones(1000)) for _ in range(2000)]
    assert spill_weights(small) == 0


def test_parts_of_memory_stay():
    whole = torch.ones(2 * SIZE)
    half = nn.Parameter(whole[:SIZE])
    del whole
    assert spill_weights([half]) == 0


def test_empty_shared_and_inference_tensors_stay():
    empty = samba.SambaTensor(shape=(SIZE,), dtype=torch.float32, name="w")
    shared = nn.Parameter(torch.ones(SIZE)).share_memory_()
    with torch.inference_mode():
        inference = torch.ones(SIZE)
    assert spill_weights([empty, shared, inference]) == 0


def test_tensors_that_are_more_than_their_memory_stay():
    with FakeTensorMode():
        fake = torch.empty(SIZE)
    two = nn.Parameter(TwoTensor(torch.ones(SIZE), torch.ones(SIZE)))
    lazy = nn.LazyLinear(SIZE).weight
    sparse = torch.eye(4).to_sparse()
    with Spill([fake, two, lazy, sparse]) as spill:
        assert not spill.has_begun


def test_zero_turns_it_off(monkeypatch):
    monkeypatch.setenv(SPILL_VARIABLE, "0")
    assert spill_weights([nn.Parameter(torch.ones(SIZE))]) == 0


def test_a_full_disk_leaves_weights_where_they_are(tmp_path, monkeypatch, caplog):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    tensor = nn.Parameter(torch.ones(SIZE))
    with caplog.at_level("INFO", logger=spilling.__name__):
        assert spill_weights([tensor]) == 0
    assert "No space left" in caplog.text
    assert not in_file(tensor)
    assert bool((tensor == 1).all())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("folder", ["missing", "memory"])
def test_folders_that_are_not_there_or_in_memory_are_not_used(
    folder, tmp_path, monkeypatch, caplog
):
    if folder == "memory":
        monkeypatch.setattr(spilling, "_file_system", lambda folder: "tmpfs")
    else:
        monkeypatch.setenv(SPILL_VARIABLE, str(tmp_path / "missing"))
    assert spill_weights([nn.Parameter(torch.ones(SIZE))]) == 0
    assert "no folder on a disk" in caplog.text  # who names a folder is told


def test_file_systems_are_told_apart(monkeypatch):
    monkeypatch.undo()
    assert spilling._file_system(Path("/proc")) == "proc"
    assert spilling._file_system(Path("/no/such/folder")) == ""
