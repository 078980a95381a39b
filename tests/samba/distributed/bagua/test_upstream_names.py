"""Scripts of Bagua: one import makes upstream's names importable, and can be undone."""

from __future__ import annotations

import copy
import sys
import warnings
from collections import defaultdict

import pytest
import torch
from torch import nn

from samba.distributed import bagua
from samba.distributed.bagua import torch_api
from samba.distributed.bagua.cuda_on_cpu import cuda_means_cpu, cuda_means_cuda
from samba.distributed.bagua.torch_api.contrib import CachedDataset, CacheLoader, fuse_optimizer
from samba.errors import ArgumentError
from tests.samba.distributed.bagua.ranks import NAMES
from tests.samba.distributed.processes import all_well, clean_environment, run_replicas
from tests.warm import finished

SAME_WEIGHTS = ("gradient_allreduce", "bytegrad", "qadam")


def test_two_processes_of_a_script_as_upstreams_examples_are():
    script = "tests/samba/distributed/workers/bagua_script.py"
    command = [sys.executable, "-m", "samba.distributed.bagua", "--cuda-on-cpu", script]
    ended = run_replicas(2, command, "--algorithms", *NAMES, seconds=120)
    all_well(ended)
    rows = [[line.split() for line in e.out.splitlines()] for e in ended]
    sums = defaultdict(list)
    for rank, of_rank in enumerate(rows):
        assert of_rank[:2] == [["before", str(rank), str(rank), "2"], ["communicated"]]
        trained = [tuple(row[1:3]) for row in of_rank[2:]]
        assert trained == [*((name, "False") for name in NAMES), ("gradient_allreduce", "True")]
        for _, name, fuse, total in of_rank[2:]:
            sums[name, fuse].append(float.fromhex(total))
    for name in SAME_WEIGHTS:
        assert sums[name, "False"][0] == sums[name, "False"][1]
    # Lists of tensors at once give what one tensor after another gives.
    assert sums["gradient_allreduce", "True"] == pytest.approx(sums["gradient_allreduce", "False"])


INSTALLED = """
import sys
import torch
import samba.distributed.bagua as real

assert not hasattr(torch.nn.Module, "with_bagua")
before = list(sys.meta_path), dir(torch.Tensor), dir(torch.nn.Module)
import sambaflow.samba.distributed.bagua.install as install
install.install()  # a second time

import bagua
import bagua.torch_api
from bagua.torch_api.algorithms import bytegrad
from bagua.torch_api.algorithms.q_adam import QAdamAlgorithm, QAdamOptimizer
from bagua.torch_api.bucket import BaguaBucket
from bagua.torch_api.contrib import CachedDataset
from bagua.torch_api.contrib.fuse.optimizer import fuse_optimizer
from bagua.torch_api.tensor import BaguaTensor

assert bagua is real and bytegrad.ByteGradAlgorithm is real.ByteGradAlgorithm
assert QAdamAlgorithm is real.QAdamAlgorithm and BaguaBucket is real.BaguaBucket
assert bagua.torch_api.algorithms.Algorithm is real.Algorithm
assert torch.ones(2).is_bagua_tensor() is False
model = torch.nn.Linear(2, 2)
assert not hasattr(model, "bagua_algorithm")
assert torch.jit.script(model)(torch.ones(2)).shape == (2,)
assert model.with_bagua([], real.GradientAllReduceAlgorithm()) is model
assert model.bagua_algorithm.name == "gradient_allreduce"

install.uninstall()
assert (list(sys.meta_path), dir(torch.Tensor), dir(torch.nn.Module)) == before
assert not [name for name in sys.modules if name.partition(".")[0] == "bagua"]
try:
    import bagua
except ModuleNotFoundError as error:
    assert error.name == "bagua"
else:
    raise AssertionError("bagua is still there")
install.install()
import bagua
assert bagua is real
"""

REFUSED = """
import sambaflow.samba.distributed.bagua.install
import bagua.torch_api

def refused(code, kind, *parts):
    try:
        exec(code)
    except kind as error:
        for part in parts:
            assert part in str(error), (code, str(error))
    else:
        raise AssertionError(code)

refused("import bagua.distributed.launch", ImportError, "bagua.distributed", "samba launch")
refused("from bagua.service import AutotuneService", ImportError, "BAGUA_DEFAULT_BUCKET_SIZE")
refused("import bagua.torch_api.data_parallel", ImportError, "with_bagua")
refused("from bagua.torch_api import data_parallel", ImportError, "with_bagua")
refused("from bagua.torch_api.model_parallel.moe import MoE", ImportError, "mixture of experts")
refused("bagua.torch_api.moe", AttributeError, "bagua.torch_api.moe", "mixture of experts")
sampler = "LoadBalancingDistributedSampler"
refused(f"from bagua.torch_api.contrib import {sampler}", ImportError, "DistributedSampler")
refused(f"bagua.torch_api.contrib.{sampler}", AttributeError, "DistributedSampler")
refused("import bagua.no_such_name", ModuleNotFoundError, "no_such_name")
refused("bagua.torch_api.no_such_name", AttributeError, "no_such_name")
"""

UPSTREAM = """
import sys
sys.path.insert(0, {folder!r})
for load in ("", "import bagua"):
    exec(load)
    try:
        import samba.distributed.bagua.install
    except ValueError as error:
        assert {folder!r} in str(error), str(error)
        assert "another package bagua" in str(error) and "Uninstall" in str(error)
    else:
        raise AssertionError(load)
assert bagua.mine
import torch
assert not hasattr(torch.nn.Module, "with_bagua")
assert not hasattr(torch.Tensor, "is_bagua_tensor")
"""


def test_names_are_installed_refused_and_taken_away_again(tmp_path):
    package = tmp_path / "bagua"
    package.mkdir()
    (package / "__init__.py").write_text("mine = True\n")
    codes = [INSTALLED, REFUSED, UPSTREAM.format(folder=str(tmp_path))]
    for code in codes:
        ended = finished([sys.executable, "-c", code], env=clean_environment())
        assert ended.returncode == 0, ended.stderr


def test_a_process_that_none_has_started_is_alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert torch_api.get_rank() == torch_api.get_local_rank() == 0
    assert torch_api.get_world_size() == torch_api.get_local_size() == 1
    with pytest.raises(ArgumentError, match="init_process_group before"):
        torch_api.allreduce_inplace(torch.ones(2))


def test_what_the_launcher_tells_counts_before_the_processes_meet(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert (torch_api.get_rank(), torch_api.get_world_size()) == (3, 4)
    assert (torch_api.get_local_rank(), torch_api.get_local_size()) == (1, 2)


def test_parameters_that_upstream_would_leave_out_are_refused():
    model = nn.Linear(2, 2)
    model._bagua_params_and_buffers_to_ignore = ["bias"]
    with pytest.raises(ArgumentError, match=r"\['bias'\]"):
        torch_api.BaguaModule.with_bagua(model, [], bagua.GradientAllReduceAlgorithm())


def test_cuda_means_the_cpu_until_it_is_undone():
    before = dict(vars(torch.cuda)), dict(vars(nn.Module)), dict(vars(torch.Tensor))
    model, tensor = nn.Linear(2, 2), torch.ones(2)
    cuda_means_cpu()
    try:
        cuda_means_cpu()
        assert torch.cuda.is_available()
        torch.cuda.set_device(1)
        torch.cuda.synchronize()
        assert model.cuda() is model and tensor.cuda(0, non_blocking=True) is tensor
        with pytest.raises((AssertionError, RuntimeError), match="CUDA"):
            tensor.to("cuda")
    finally:
        cuda_means_cuda()
    assert not torch.cuda.is_available()
    assert before == (dict(vars(torch.cuda)), dict(vars(nn.Module)), dict(vars(torch.Tensor)))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.Adadelta, {"lr": 0.5}),
        (bagua.QAdamOptimizer, {"lr": 0.1}),
    ],
)
def test_a_fused_step_is_a_step(kind, settings):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    fused = copy.deepcopy(plain)
    steps = [kind(plain.parameters(), **settings), kind(fused.parameters(), **settings)]
    assert fuse_optimizer(steps[1]) is steps[1]
    with pytest.raises(ArgumentError, match="a fused"):
        fuse_optimizer(steps[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a scheduler warns where it has seen no step
        scheduler = torch.optim.lr_scheduler.StepLR(steps[1], 1)
        for number in range(3):
            x = torch.randn(5, 3)
            for model in (plain, fused):
                model.zero_grad()
                model(x).pow(2).sum().backward()
            steps[0].step()
            steps[1].fuse_step()
            steps[0].param_groups[0]["lr"] *= 0.1
            scheduler.step()
            assert number + 1 == scheduler.last_epoch
    for a, b in zip(plain.parameters(), fused.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert not steps[1].param_groups[0].get("foreach")


def test_samples_are_computed_once_and_kept_up_to_the_capacity():
    class Squares(torch.utils.data.Dataset):
        def __init__(self):
            self.asked = []

        def __getitem__(self, index):
            self.asked.append(index)
            return torch.full((2,), float(index) ** 2)

        def __len__(self):
            return 4

    squares = Squares()
    cached = CachedDataset(squares, backend="redis", dataset_name="squares", cluster_mode=False)
    assert len(cached) == 4
    for _ in range(2):
        kept = [cached[i] for i in range(4)]
        assert [x[0].item() for x in kept] == [0, 1, 4, 9]
        kept[3].zero_()  # a copy of the reader's own
    assert squares.asked == [0, 1, 2, 3] and cached.cache_loader.num_keys() == 4

    small = CacheLoader(capacity_per_node=100)
    for _ in range(2):
        assert len(small.get("large", lambda key: "x" * 200)) == 200
    assert small.num_keys() == 0
    with pytest.raises(ArgumentError, match="hosts"):
        CacheLoader(hosts=[{"host": "a", "port": "1"}])
    with pytest.raises(ArgumentError, match="'lmdb'"):
        CachedDataset(squares, backend="lmdb")
