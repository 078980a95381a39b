"""Import paths of SambaFlow, and the small modules behind them."""

from __future__ import annotations

import importlib
import json
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

import samba
from samba import _trace_utils
from samba.functional.functional_decorator_utils import experimental
from samba.functional.functional_utils import is_static, is_symbolic
from samba.lazy_param import lazy_param
from samba.ops.binary import BroadcastBinaryOperation
from samba.ops.op_utils import broadcast_input_shapes
from samba.schema.snconfig import SNConfig
from samba.test import Different, TestWithGold, consistency_test
from samba.utils.argparser import SambaConfig
from samba.utils.checkpoint import BadCheckpoint, load_sharded_checkpoint, save_checkpoint
from samba.utils.numeric import MAX_BF16_TRUNCATE_NORMAL_REL
from samba.utils.read_perf_counters import main
from samba.utils.tensorboard_debug import dump_accuracy_debug_info
from samba.utils.trainer.samba import train as train_on_device
from samba.utils.trainer.torch import train as train_on_host
from tests.samba.worlds import MLP, NO_OPTIMIZER, close, features, named, other_batch
from tests.warm import TORCH, forked

NAMES: dict[str, list[str]] = {
    "sambaflow": ["__version__", "is_demo"],
    "sambaflow.logging": ["samba_logger"],
    "sambaflow.sambacollections": ["OrderedSet"],
    "sambaflow.mac.metadata": ["ConvTilingMetadata", "TilingMetadata"],
    "sambaflow.online_inference_service.sn_sqs_handler": ["Queue"],
    "sambaflow.samba.random": ["randn", "rand", "randint", "normal"],
    "sambaflow.samba.sambatensor": ["SambaTensor", "from_torch_tensor", "to_torch", "DimInfo"],
    "sambaflow.samba.session": ["SambaSession"],
    "sambaflow.samba._trace_utils": [
        "_get_output_tensors",
        "_trace_single_torch_graph",
        "_trace_torch_graph",
    ],
    "sambaflow.samba.functional.arithmetic": ["mul", "abs", "add", "div"],
    "sambaflow.samba.functional.tensorarithmetic": ["addmm", "bmm", "cumsum"],
    "sambaflow.samba.functional.reduce": ["argmax"],
    "sambaflow.samba.functional.logical": ["bitwise_not"],
    "sambaflow.samba.functional.loss": ["cross_entropy"],
    "sambaflow.samba.functional.tensorops": ["cat"],
    "sambaflow.samba.functional.stir": ["sn_zipmapreduce", "sn_select", "sn_imm", "sn_iteridx"],
    "sambaflow.samba.functional.functional_decorator_utils": [],
    "sambaflow.samba.functional.functional_utils": [],
    "sambaflow.samba.ops.binary": ["BroadcastBinaryOperation"],
    "sambaflow.samba.ops.op_utils": ["broadcast_input_shapes"],
    "sambaflow.samba.sn_private": ["sn_gather", "sn_scatter", "sn_multinomial"],
    "sambaflow.samba.nn.parameter": ["SambaParameter"],
    "sambaflow.samba.optim": ["SGD", "AdamW", "SparseAdamW"],
    "sambaflow.samba.optim.adam": ["AdamW"],
    "sambaflow.samba.sambaloader": ["SambaLoader", "DataLoaderException"],
    "sambaflow.samba.profiler": ["Profiler"],
    "sambaflow.samba.lazy_param": ["lazy_param", "RNGProvider", "RNGProviderFactory"],
    "sambaflow.samba.materialize": ["materialize"],
    "sambaflow.samba.directives": ["op_fusion", "sdpa_directives"],
    "sambaflow.samba.env": [
        "use_mock_samba_runtime",
        "enable_conv_grad_accum_stoc",
        "enable_addbias_grad_accum_stoc",
        "disable_sgd_stoc",
    ],
    "sambaflow.samba.argconf.args": ["CommonArgs", "CompileArgs", "RunArgs"],
    "sambaflow.samba.argconf.dev_args": ["DevArgs"],
    "sambaflow.samba.schema.snconfig": ["SNConfig"],
    "sambaflow.frameworks.quantized.quantized_linear": [
        "QuantizedLinear",
        "SNQConfig",
        "quantize_model",
    ],
    "sambaflow.samba.test": ["consistency_test", "TestWithGold"],
    "sambaflow.samba.abexit": ["SambaAtexit"],
    "sambaflow.samba.utils": [
        *("trace_graph", "init_output_grads", "measure_performance", "measure_sections"),
        *("assert_close", "set_seed", "get_file_dir", "get_rank", "get_world_size"),
        *("is_main_process", "parse_dtype", "weight_norm_", "fix_rdu_affinity", "SNType"),
        "create_mac_resource_report",
    ],
    "sambaflow.samba.utils.utils": ["trace_graph"],
    "sambaflow.samba.utils.argparser": ["parse_app_args", "parse_yaml_to_args", "SambaConfig"],
    "sambaflow.samba.utils.common": ["common_app_driver"],
    "sambaflow.samba.utils.pef_utils": [
        "get_pefmeta",
        "get_pefmeta_dict",
        "get_pef_info",
        "PefInfoStruct",
    ],
    "sambaflow.samba.utils.checkpoint": ["load_sharded_checkpoint"],
    "sambaflow.samba.utils.benchmark_acc": ["AccuracyReport"],
    "sambaflow.samba.utils.dataset.mnist": ["dataset_transform", "prepare_dataloader"],
    "sambaflow.samba.utils.trainer.samba": ["train"],
    "sambaflow.samba.utils.trainer.torch": ["train"],
    "sambaflow.samba.utils.numeric": ["MAX_BF16_TRUNCATE_NORMAL_REL"],
    "sambaflow.samba.utils.tensorboard_debug": ["dump_accuracy_debug_info"],
    "sambaflow.samba.utils.read_perf_counters": ["main"],
}


@pytest.mark.parametrize("module", NAMES)
def test_import_paths(module: str) -> None:
    found = importlib.import_module(module)
    assert all(hasattr(found, name) for name in NAMES[module])
    real = module.removeprefix("sambaflow.")
    if real.startswith("samba."):
        assert found is importlib.import_module(real)


def test_the_root_alone_reaches_what_scripts_reach_for() -> None:
    code = """
import sambaflow.samba as samba
for path in ["sambaloader.SambaLoader", "optim.SparseAdamW", "utils.trace_graph", "session.run",
             "directives.op_fusion", "nn.parameter", "profiler.Profiler", "sn_private.sn_gather",
             "utils.checkpoint.load_sharded_checkpoint", "functional.stir.sn_fma", "env"]:
    found = samba
    for name in path.split("."):
        found = getattr(found, name)
"""
    (done,) = forked("", [code], parent=TORCH)
    assert done.returncode == 0, done.stderr


def test_the_inference_service_is_refused() -> None:
    from sambaflow.online_inference_service.sn_sqs_handler import NoService, Queue

    with pytest.raises(NoService, match="not part of the emulator"):
        Queue("name")


# -- samba.test -------------------------------------------------------------


def test_a_consistent_test_passes_and_returns_its_first_run() -> None:
    calls = []

    @consistency_test()
    def test(args: Any, model: Any, inputs: Any, outputs: Any) -> list[tuple[str, torch.Tensor]]:
        calls.append(args)
        return [("loss", torch.tensor([1.0, float("nan")]))]

    assert test("a", None, None, None)[0][0] == "loss" and calls == ["a", "a"]


def test_an_inconsistent_test_names_what_differs() -> None:
    numbers = iter([1.0, 1.5])

    @consistency_test()
    def test() -> list[tuple[str, Any]]:
        return [("same", torch.ones(2)), ("loss", samba.tensor([next(numbers)]))]

    with pytest.raises(Different, match=r"loss: 1 of 1 elements, by up to 0.5") as e:
        test()
    assert e.value.names == ("loss",) and isinstance(e.value, AssertionError)


def test_gold_files(pefs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = Namespace(gold_file_path=str(tmp_path / "gold.pt"))
    for text in ("gold.pt created: ", "10 tensors are those of"):
        scene = pefs.loaded(NO_OPTIMIZER)
        TestWithGold(args, "mlp", scene.model, None, None).test()
        assert text in capsys.readouterr().out
    scene = pefs.loaded(NO_OPTIMIZER)
    with torch.no_grad():
        scene.model.first.bias[2] += 1e-3
    samba.session.to_rdu(scene.model)
    with pytest.raises(Different, match="mlp__first__bias: 1 of 6 elements") as e:
        TestWithGold(args, "mlp", scene.model).test()
    assert "mlp__second__weight__grad" in e.value.names
    assert "mlp__second__weight" not in e.value.names


# -- samba.utils ------------------------------------------------------------


def test_the_bound_of_truncation_holds_and_is_sharp() -> None:
    from samba.tensor.rng import to_bfloat16

    values = torch.randn(100_000).abs() + 1e-3
    away = (values - to_bfloat16(values, "truncation").float()) / values
    assert 0.98 * MAX_BF16_TRUNCATE_NORMAL_REL < away.max() <= MAX_BF16_TRUNCATE_NORMAL_REL


def test_accuracy_report(pefs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scene = pefs.loaded(MLP)
    path = dump_accuracy_debug_info(None, scene.model, scene.inputs, scene.model.output_tensors)
    assert path == Path("runs/accuracy_debug.txt")
    head, *lines = path.read_text().splitlines()
    assert "max difference" in head and len(lines) == 2
    for line, output in zip(lines, scene.model.output_tensors, strict=True):
        name, largest, mean, size = line.split()
        assert name == output.sn_name
        assert float(mean) <= float(largest) < 1e-6 < float(size)
    again = dump_accuracy_debug_info(
        None, scene.model, dict(zip("xy", scene.inputs, strict=True)), scene.model.output_tensors
    )
    assert again.exists()


def test_training_loops_agree(scene: Any) -> None:
    batches = [features(), other_batch()]
    device = train_on_device(scene.model, [named(b) for b in batches], {"lr": 0.1}, epochs=3)
    host = train_on_host(scene.host, batches, scene.host_optimizer, epochs=3)
    assert device == pytest.approx(host, rel=1e-5) and len(device) == 3
    assert device[-1] < device[0]
    scene.assert_follows()
    assert train_on_host(scene.host, [], scene.host_optimizer)[0] != 0


def test_there_are_no_counters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["x"]) == 0 and "measure-sections" in capsys.readouterr().out


def test_configuration_objects() -> None:
    args = Namespace(batch_size=3)
    assert SambaConfig(args, SNConfig).get_all_params() == {"batch_size": 3}
    assert samba.utils.fix_rdu_affinity() is None


# -- checkpoints ------------------------------------------------------------


def _model(seed: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def _split(folder: Path, name: str, save: Any) -> dict[str, torch.Tensor]:
    state = _model().state_dict()
    keys = list(state)
    shards = {f"{name}-0.{suffix(name)}": keys[:3], f"{name}-1.{suffix(name)}": keys[3:]}
    for file, part in shards.items():
        save({k: state[k] for k in part}, folder / file)
    index = {"weight_map": {k: file for file, part in shards.items() for k in part}}
    (folder / INDEX[name]).write_text(json.dumps(index))
    return state


INDEX = {"st": "model.safetensors.index.json", "pt": "pytorch_model.bin.index.json"}
SAVE = {"st": lambda s, p: safetensors.torch.save_file(s, p), "pt": torch.save}


def suffix(name: str) -> str:
    return "safetensors" if name == "st" else "bin"


@pytest.mark.parametrize("name", ["st", "pt"])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("by_index", [False, True])
def test_sharded_checkpoints(tmp_path: Path, name: str, lazy: bool, by_index: bool) -> None:
    state = _split(tmp_path, name, SAVE[name])
    with lazy_param() if lazy else nullcontext():
        model = _model(9)
    samba.from_torch_model_(model)
    place = tmp_path / INDEX[name] if by_index else tmp_path
    assert load_sharded_checkpoint(model, place) == ([], [])
    for key, value in model.state_dict().items():
        assert torch.equal(samba.to_torch(value), state[key]), key


def test_keys_may_be_names_on_the_device(tmp_path: Path) -> None:
    model, other = nn.Linear(3, 2), samba.from_torch_model_(nn.Linear(3, 2))
    state = {f"linear__{k}": v for k, v in model.state_dict().items()}
    torch.save(state, tmp_path / "pytorch_model.bin")
    load_sharded_checkpoint(other, tmp_path / "pytorch_model.bin")
    close(other.weight, model.weight.detach())


@pytest.mark.parametrize("lazy", [False, True])
def test_saved_regions_are_read_back_by_safetensors_and_by_us(tmp_path: Path, lazy: bool) -> None:
    def make() -> nn.Module:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(3, 4).bfloat16(), nn.BatchNorm1d(4), nn.Linear(4, 4))
        return samba.from_torch_model_(model, "part")

    with lazy_param() if lazy else nullcontext():
        model = make()
    weight = model[2].weight
    model[0].bias.sn_region_name = "shared"
    model[2].register_parameter("tied", model[0].bias)
    file = tmp_path / "model.safetensors"
    save_checkpoint(model, file)
    read = safetensors.torch.load_file(str(file))
    assert read["shared"].dtype is torch.bfloat16
    assert set(read) == {
        "shared",
        *(f"part__sequential__{name}" for name in ("0__weight", "2__weight", "2__bias")),
        *(f"part__sequential__1__{name}" for name in ("weight", "bias")),
        *(f"part__sequential__1__running_{name}" for name in ("mean", "var")),
        "part__sequential__1__num_batches_tracked",
    }
    other = make()
    other[0].bias.sn_region_name = "shared"
    with torch.no_grad():
        other[1].running_mean.fill_(7)
    assert load_sharded_checkpoint(other, tmp_path) == ([], [])
    assert torch.equal(other[2].weight.data, samba.to_torch(weight.torch_tensor()))
    assert torch.equal(read["part__sequential__2__weight"], other[2].weight.data)
    assert other[1].running_mean.sum() == 0


def test_checkpoints_that_do_not_fit(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    file = tmp_path / "model.safetensors"
    with pytest.raises(BadCheckpoint, match="found no checkpoint; expected one of"):
        load_sharded_checkpoint(model, tmp_path)
    safetensors.torch.save_file({"weight": torch.ones(2, 3).bfloat16()}, file)
    with pytest.raises(BadCheckpoint, match=r"wants \[2, 3\] torch.float32; ignore_dtype"):
        load_sharded_checkpoint(model, tmp_path)
    with pytest.raises(BadCheckpoint, match=r"model's \['bias'\] are missing"):
        load_sharded_checkpoint(model, tmp_path, ignore_dtype_mismatch=True)
    result = load_sharded_checkpoint(model, tmp_path, ignore_dtype_mismatch=True, strict=False)
    assert result.missing_keys == ["bias"] and model.weight.sum() == 6


# -- tracing and operations -------------------------------------------------


def test_tracing_alone_names_the_outputs() -> None:
    model = MLP.model()
    assert _trace_utils._get_output_tensors(model) == ()
    outputs = _trace_utils._trace_single_torch_graph(model, named(features()))
    assert [o.sn_name for o in outputs] == [
        "mlp__cross_entropy_loss__outputs__0",
        "mlp__second__linear__outputs__0",
    ]
    assert _trace_utils._get_output_tensors(model) is outputs and is_symbolic(outputs[0])


def test_pointwise_operations_keep_the_text_of_torch() -> None:
    assert broadcast_input_shapes((2, 1), (3,), ()) == (2, 3)
    add = BroadcastBinaryOperation(torch.add)
    assert add.output_shape(torch.ones(2, 1), torch.ones(3)) == (2, 3)
    text = r"The size of tensor a \(12\) must match the size of tensor b \(14\) at non-singleton"
    with pytest.raises(RuntimeError, match=text):
        add(torch.ones(12), torch.ones(14))


def test_questions_and_marks() -> None:
    assert not is_static() and not is_symbolic(torch.ones(1)) and not is_symbolic(samba.ones(1))

    @experimental
    def f() -> int:
        return 1

    assert f() == 1 and vars(f)["experimental"]


# -- optimizers -------------------------------------------------------------


def test_sparse_adamw_updates_as_adamw() -> None:
    a, b = nn.Linear(3, 2), nn.Linear(3, 2)
    b.load_state_dict(a.state_dict())
    for model, kind in ((a, samba.optim.AdamW), (b, samba.optim.SparseAdamW)):
        optimizer = kind(model.parameters(), lr=0.1, weight_decay=0.1)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    assert torch.equal(a.weight, b.weight)


def test_optimizer_transfers_need_a_program() -> None:
    optimizer = samba.optim.SGD(nn.Linear(2, 2).parameters())
    for transfer in (optimizer.cpu, optimizer.rdu):
        with pytest.raises(samba.SambaError, match="nothing is on the device"):
            transfer()


def test_a_pef_is_no_common_argument() -> None:
    """The model zoo takes every common field of a run from the metadata of its PEF."""
    from samba.argconf.args import CommonArgs, CompileArgs, RunArgs

    assert "pef" not in CommonArgs.model_fields
    assert {"batch_size", "inference", "mapping"} <= set(CommonArgs.model_fields)
    run = RunArgs(pef="x.pef")
    common = [name for name in type(run).model_fields if name in CommonArgs.model_fields]
    in_pef = dict.fromkeys(common, "of the PEF")
    assert RunArgs(**{**run.model_dump(), **in_pef}).pef == "x.pef"
    assert CompileArgs(pef="y.pef").pef == "y.pef"


def test_names_that_no_page_describes() -> None:
    from samba.argconf.dev_args import DevArgs
    from sambaflow.mac.metadata import ConvTilingMetadata, TilingMetadata

    args = DevArgs(unheard_of=1)
    assert args.mac_v2 is False
    assert args.unheard_of == 1
    assert "batch_size" not in DevArgs.model_fields
    hint = ConvTilingMetadata(original_size=[1, 2])
    assert isinstance(hint, TilingMetadata)
    assert TilingMetadata.key != hint.key == "conv_tiling"
    with pytest.raises(samba.SambaError, match="output_dict: nothing is on the device"):
        _ = samba.session.output_dict
