"""Host weights that a file holds while the device trains: whoever asks finds what was there."""

from __future__ import annotations

import copy
import ctypes
import io
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import samba
from samba import utils
from samba.support import file_pages
from samba.support.file_pages import Block
from samba.tensor.views import host_of

WIDTH = 256


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, y):
        out = self.second(torch.relu(self.first(x)))
        return F.mse_loss(out, y), out


def given(seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(8, WIDTH, generator=generator) for _ in range(2)]
    return [samba.from_torch_tensor(v, name=n) for v, n in zip(values, ("x", "y"), strict=True)]


class World:
    """A loaded model, and a copy of it as it was before that."""

    def __init__(self, folder: Path, *, converted: bool) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.before = copy.deepcopy(self.model)
        self.plain = dict(self.model.named_parameters())
        if converted:
            samba.from_torch_model_(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        config = {"output_folder": str(folder), "pef_name": "net"}
        pef = samba.session.compile(self.model, given(), self.optimizer, config_dict=config)
        self.address = self.plain["second.weight"].data_ptr()
        self.outputs = utils.trace_graph(self.model, given(), self.optimizer, pef=pef)

    def run(self, seed: int = 0) -> torch.Tensor:
        return samba.session.run(given(seed), self.outputs)[0].torch()

    def follow(self) -> nn.Module:
        """A copy of the model with the device's values, which a load_state_dict starts from."""
        samba.session.to_cpu(self.model, inplace=True)
        for ours, theirs in zip(self.model.parameters(), self.before.parameters(), strict=True):
            theirs.detach().copy_(host_of(ours).detach())
        return self.before

    def in_memory(self, name: str = "second.weight") -> int:
        tensor = self.plain[name]
        block = Block(start=tensor.data_ptr(), nbytes=4 * tensor.numel())
        return file_pages._in_memory(block.pages())


@pytest.fixture(params=[True, False], ids=["converted", "plain"])
def world(request, tmp_path, monkeypatch) -> World:
    monkeypatch.setattr(file_pages, "_frames", dict)  # threads of a test runner write no weights
    return World(tmp_path, converted=request.param)


def read_at_address(model: nn.Module) -> torch.Tensor:
    weight = host_of(model.second.weight)
    values = ctypes.string_at(weight.data_ptr(), 4 * weight.numel())
    return torch.frombuffer(bytearray(values), dtype=torch.float32).view(WIDTH, WIDTH)


def read_pickled(model: nn.Module) -> torch.Tensor:
    return pickle.loads(pickle.dumps(model.second.weight))  # noqa: S301  # its own bytes


def read_saved(model: nn.Module) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=False)["second.weight"]


class FromWeights(Dataset[torch.Tensor]):
    """Loads rows of a weight, as samples of embeddings may come."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight

    def __len__(self) -> int:
        return WIDTH

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self.weight.detach().numpy()[index].copy())


def read_in_a_worker(model: nn.Module) -> torch.Tensor:
    weight = host_of(model.second.weight).detach().as_subclass(torch.Tensor)
    loader = DataLoader(FromWeights(weight), batch_size=64, num_workers=1)
    return torch.cat(list(loader))


def read_piped(model: nn.Module) -> torch.Tensor:
    """By the kernel: a write of the memory into a pipe, through a file."""
    weight = host_of(model.second.weight).detach()
    memory = (ctypes.c_char * (4 * weight.numel())).from_address(weight.data_ptr())
    reading, writing = os.pipe()
    found = bytearray()
    view = memoryview(memory).cast("B")
    with (
        os.fdopen(reading, "rb", buffering=0) as end,
        os.fdopen(writing, "wb", buffering=0) as into,
    ):
        while len(found) < len(view):
            into.write(view[len(found) : len(found) + 4096])
            found += end.read(4096)
    return torch.frombuffer(found, dtype=torch.float32).view(WIDTH, WIDTH)


READERS: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda m: torch.from_numpy(m.second.weight.detach().numpy().copy()),
    "address": read_at_address,
    "state_dict": lambda m: m.state_dict()["second.weight"].clone(),
    "pickle": read_pickled,
    "save": read_saved,
    "deepcopy": lambda m: copy.deepcopy(m).second.weight,
    "operation": lambda m: m.second.weight * 1.0,
    "rows": lambda m: torch.stack([row.clone() for row in m.second.weight]),
    "items": lambda m: torch.tensor(m.second.weight.tolist()),
    "data": lambda m: m.second.weight.data.clone(),
    "storage": lambda m: torch.tensor(
        host_of(m.second.weight).untyped_storage().tolist(), dtype=torch.uint8
    ).view(torch.float32),
    "dlpack": lambda m: torch.from_dlpack(host_of(m.second.weight).detach()).clone(),
    "vector": lambda m: nn.utils.parameters_to_vector([m.second.weight]),
    "product": lambda m: F.linear(torch.eye(WIDTH), host_of(m.second.weight).detach()).T,
    "worker": read_in_a_worker,
    "kernel": read_piped,
}


def same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    plain = [host_of(t).detach().as_subclass(torch.Tensor).contiguous() for t in (ours, theirs)]
    return plain[0].numpy().tobytes() == plain[1].numpy().tobytes()


def test_every_way_of_reading(world) -> None:
    """Before a run and after it: host memory has what it had, as nothing was copied."""
    want = world.before.second.weight.detach()
    assert world.in_memory() == 0
    for when in ("loaded", "run"):
        for name, read in READERS.items():
            assert same_bits(read(world.model), want), (when, name)
        world.run()
    assert world.in_memory() == 0  # reading takes no memory of one's own
    assert world.plain["second.weight"].data_ptr() == world.address


def write_numpy(model: nn.Module) -> None:
    model.second.weight.detach().numpy()[3:200] = 2.5


def write_address(model: nn.Module) -> None:
    ctypes.memset(host_of(model.second.weight).data_ptr() + 5000, 0, 100_000)


def write_step(model: nn.Module) -> None:
    parameters = [host_of(p) for p in model.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 0.25)
    optimizer.step()
    for parameter in parameters:
        parameter.grad = None


def write_from_kernel(model: nn.Module) -> None:
    """The kernel writes into the memory, as a read of a file does."""
    weight = host_of(model.second.weight)
    memory = (ctypes.c_char * 8192).from_address(weight.data_ptr() + 4096 - 16)
    with open("/dev/zero", "rb", buffering=0) as zeros:
        assert zeros.readinto(memory) == 8192


def no_grad(write: Callable[[Any], object]) -> Callable[[Any], None]:
    def run(model: nn.Module) -> None:
        with torch.no_grad():
            write(model)

    return run


WRITERS: dict[str, Callable[[Any], object]] = {
    "add": no_grad(lambda m: m.second.weight.add_(1.5)),
    "copy": no_grad(lambda m: m.second.weight.copy_(torch.full((WIDTH, WIDTH), 3.0))),
    "entry": no_grad(lambda m: m.second.weight[7].fill_(9.0)),
    "view": no_grad(lambda m: m.second.weight.data.view(-1)[100:5000].zero_()),
    "init": lambda m: nn.init.constant_(m.second.weight, 0.125),
    "numpy": write_numpy,
    "address": write_address,
    "step": write_step,
    "kernel": write_from_kernel,
    "load": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_every_way_of_writing(world, write) -> None:
    world.run()
    before = world.before if write is not WRITERS["load"] else world.follow()
    write(world.model)
    write(before)
    for name, want in before.named_parameters():
        assert same_bits(dict(world.model.named_parameters())[name], want), name
    samba.session.to_rdu(world.model)
    samba.session.to_cpu(world.model)
    for name, want in before.named_parameters():
        assert same_bits(dict(world.model.named_parameters())[name], want), name
    assert world.run().isfinite()


@pytest.mark.parametrize("inplace", [True, False])
def test_training_is_the_same_to_the_bit(tmp_path, monkeypatch, inplace) -> None:
    """With weights in memory and without: losses, weights before and after copies, states."""
    found = []
    for keep in ("1", "0"):
        monkeypatch.setenv("SN_KEEP_HOST_WEIGHTS", keep)
        monkeypatch.setattr(file_pages, "_frames", dict)
        made = World(tmp_path, converted=True)
        assert bool(made.in_memory()) is (keep == "1")
        state = [made.run(seed).clone() for seed in range(3)]
        state += [p.detach().clone() for p in made.model.parameters()]
        samba.session.to_cpu(made.model, made.optimizer, inplace=inplace)
        state += [p.detach().clone() for p in made.model.parameters()]
        state += [made.run(seed).clone() for seed in range(3)]
        found.append(state)
    for kept, given_back in zip(*found, strict=True):
        assert same_bits(kept, given_back)


def test_aliases_from_before_stay_aliases(world) -> None:
    weight = world.plain["second.weight"]
    view = weight.detach()[10]
    world.run()
    with torch.no_grad():
        weight[10].fill_(4.0)
    assert view.eq(4.0).all()
    samba.session.to_cpu(world.model, inplace=True)
    assert same_bits(view, weight[10])


def test_a_parameter_that_ends_leaves_its_aliases(world) -> None:
    want = world.before.second.weight.detach()
    rows = world.plain["second.weight"].detach()[100:]
    world.plain.clear()
    world.model.second.weight = nn.Parameter(torch.zeros(WIDTH, WIDTH))
    assert same_bits(rows, want[100:])


def test_no_disk_and_shared_memory_change_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(file_pages, "_frames", dict)
    monkeypatch.setattr(file_pages, "_DISKS", frozenset())
    made = World(tmp_path, converted=False)
    assert made.in_memory() > 0
    monkeypatch.undo()
    monkeypatch.setattr(file_pages, "_frames", dict)
    torch.manual_seed(0)
    model = Net().share_memory()
    assert made.run().isfinite()
    config = {"output_folder": str(tmp_path), "pef_name": "shared"}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    pef = samba.session.compile(model, given(), optimizer, config_dict=config)
    utils.trace_graph(model, given(), optimizer, pef=pef)
    address = model.second.weight.data_ptr()
    (access,) = [
        line.split()[1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if int(line.split("-")[0], 16) <= address < int(line.split()[0].split("-")[1], 16)
    ]
    assert access == "rw-s"  # what is shared with other processes is so still


SCRIPT = """
    import sys
    import torch
    import samba
    from samba import utils

    def resident(field):
        with open("/proc/self/status") as status:
            return int(next(l for l in status if l.startswith(field)).split()[1]) / 1024

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(4096, 2048)

        def forward(self, x):
            return self.line(x).square().mean()

    model = samba.from_torch_model_(Net())
    x = samba.from_torch_tensor(torch.randn(2, 4096), name="x")
    optimizer = samba.optim.SGD(model.parameters(), lr=0.1)
    pef = samba.session.compile(model, [x], optimizer, config_dict={"output_folder": sys.argv[1]})
    outputs = utils.trace_graph(model, [x], optimizer, pef=pef)
    samba.session.run([x], outputs)
    total = float(torch.ones(1000).sum())
    anonymous, of_file = resident("RssAnon"), resident("RssFile")
    total = float(model.line.weight.detach().sum())
    print(resident("RssAnon") - anonymous, resident("RssFile") - of_file)
"""


@pytest.mark.parametrize("keep", ["0", "1"])
def test_memory_is_given_back(tmp_path, keep) -> None:
    """32 MiB of weights are not resident until they are read, and then pages of a file."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path)],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "SN_KEEP_HOST_WEIGHTS": keep},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    anonymous, of_file = map(float, done.stdout.split()[-2:])
    assert anonymous < 4, anonymous
    assert of_file > 31 if keep == "0" else of_file < 8, of_file
