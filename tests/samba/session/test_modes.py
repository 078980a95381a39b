"""Modes of the session, its profiles, its exit handling, and what it only records."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from torch import nn

import samba
from samba.argconf import parsed
from samba.argconf.args import CompileArgs, RunArgs
from samba.errors import ArgumentError
from samba.session.modes import ConfigUnreadable
from samba.support.deviations import Deviations
from samba.utils.argparser import last_parsed_args
from tests.api.covers import covers
from tests.samba.worlds import MLP, close, told
from tests.warm import forked

FAILURES = (
    "raise ValueError('no data')",
    "raise SystemExit(7)",
    "raise SystemExit('too bad')",
    "raise KeyboardInterrupt",
)
CODES = {
    "pydantic": """
import sys
sys.modules["pydantic"] = None
import samba.argconf.args as args
try:
    args.RunArgs
except ImportError as error:
    print(error)
""",
    "usual": """
samba.session.atexit_register(print, 'first', 'registered', sep=' was ')
samba.session.atexit_register(lambda: 1 / 0)
samba.session.atexit_register(print, 'last')
samba.session.use_abexit(lambda a, b: print('main', a, b), 1, b=2)
print('after')
""",
    "plain": """
samba.session.atexit_register(print, 'ours', 'too', sep=' and ')
atexit.register(print, 'later')
print('end')
""",
    **{
        failure: f"""
import threading
threading.Thread(target=threading.Event().wait).start()  # would hang a usual end
samba.session.atexit_register(print, 'ours')
def main():
    print('main')
    {failure}
samba.session.use_abexit(main)
print('never')
"""
        for failure in FAILURES
    },
}


@pytest.fixture(scope="module")
def ended():
    """How a process ends that runs each of the codes after an import of samba."""
    head = "import atexit, samba\natexit.register(print, 'python')\n"
    return dict(zip(CODES, forked("", [head + code for code in CODES.values()]), strict=True))


@pytest.fixture(autouse=True)
def no_mode_left():
    yield
    samba.session.disable_lazy_param()
    samba.session.profiler.stop_profile()
    samba.session.profiler.reset()


# -- profiles ---------------------------------------------------------------


@covers("samba.session.samba_profile", ".profiler")
def test_events_of_a_session(pefs, tmp_path):
    scene = pefs.scene(MLP)
    path = tmp_path / "profile.txt"
    with samba.session.samba_profile(path) as profiler:
        scene.trace()
        scene.run()
        scene.run(section_types=["fwd", "BCKWD"])
        samba.session.run(None, (), section_types="FWD")
        samba.session.to_cpu(scene.model)
        _ = scene.model.first.weight.sn_data
        scene.model.first.weight.rdu()
    counts = {name: len(profiler.get_iter_times(name)) for name in profiler.names}
    assert counts == {
        "SAMBA_SET_PEF": 1,
        "SAMBA_INIT_RUNTIME": 1,
        "PyRT_SET_TENSORS": 4,  # weights, inputs twice, rdu
        "PyRT_RUN": 3,
        "PyRT_GET_TENSORS": 4,  # outputs twice, to_cpu, sn_data
        "SAMBA_SESSION_RUN": 1,
        "SAMBA_SESSION_RUN_FWD_BCKWD": 1,
        "SAMBA_SESSION_RUN_FWD": 1,
    }
    assert not profiler.started
    assert {line.split()[0] for line in path.read_text().splitlines()} == {"event", *counts}
    inside, whole = profiler.get_latencies(["PyRT_RUN", "SAMBA_SESSION_RUN"]).values()
    assert inside > 0 and whole > 0


@covers("samba.session.start_samba_profile", ".end_samba_profile")
def test_a_profiled_run_gives_the_same_results(pefs):
    plain = pefs.loaded(MLP)
    expected = [plain.run() for _ in range(3)]
    profiled = pefs.loaded(MLP)
    samba.session.start_samba_profile()
    for want in expected:
        for ours, theirs in zip(profiled.run(), want, strict=True):
            assert torch.equal(ours, theirs)
    samba.session.end_samba_profile()


@covers("samba.session.enable_pinned_memory", ".disable_pinned_memory", ".use_pinned_memory")
def test_pinned_inputs_have_an_event_of_their_own(scene):
    samba.session.enable_pinned_memory()
    assert samba.session.use_pinned_memory()
    with samba.session.samba_profile() as profiler:
        scene.run()
    samba.session.disable_pinned_memory()
    assert not samba.session.use_pinned_memory()
    assert "PyRT_SET_PINNED_INPUT_TENSORS" in profiler.names
    assert "PyRT_SET_TENSORS" not in profiler.names


def test_nothing_is_recorded_while_the_profiler_is_off(pefs):
    pefs.loaded(MLP).run()
    assert samba.session.profiler.names == []


@covers(
    "samba.session.start_runtime_profile", ".end_runtime_profile", ".end_runtime_profile(log_file)"
)
def test_a_runtime_profile_counts_the_work_of_the_device(pefs, tmp_path, monkeypatch, capsys):
    scene = pefs.loaded(MLP)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "runtime.log"
    samba.session.start_runtime_profile()
    samba.session.end_runtime_profile(str(path))
    assert not path.exists()
    for setting, given, file in (
        ("SUMMARY", {"log_file": str(path)}, path),
        ("DETAILED", {"log_file": str(path)}, path),
        ("DETAILED", {}, tmp_path / "cprofile_tmp.log"),
    ):
        monkeypatch.setenv("ENABLE_RUNTIME_PERF", setting)
        samba.session.start_runtime_profile(timer_enabled=False)
        scene.run()
        samba.session.end_runtime_profile(**given)
        assert "device: 1 runs" in file.read_text() and "running.py" in file.read_text()
        file.unlink()


# -- modes ------------------------------------------------------------------


@covers("samba.session.disable_lazy_param", ".use_lazy_param")
def test_lazy_parameters_through_the_session():
    assert not samba.session.use_lazy_param()
    samba.session.enable_lazy_param(seed=3)
    assert samba.session.use_lazy_param()
    weight = nn.Linear(5, 4).weight
    samba.session.disable_lazy_param()
    assert not samba.session.use_lazy_param()
    assert not weight.has_data and nn.Linear(5, 4).weight.abs().sum() > 0


@covers("samba.session.disable_graphamp")
def test_graphamp_is_recorded():
    assert not samba.session.graphamp_disabled
    with samba.session.disable_graphamp(), samba.session.disable_graphamp():
        assert samba.session.graphamp_disabled
    assert not samba.session.graphamp_disabled


def test_directives_are_in_force_inside_of_their_context():
    session = samba.session
    assert session._context_directives == {}
    with session._add_directives({"opfusion_id": "a", "b": 1}):
        assert session._context_directives == {"opfusion_id": "a", "b": 1}
        with session._add_directives({"b": 2}), session._add_directives(None):
            assert session._context_directives == {"opfusion_id": "a", "b": 2}
        with pytest.raises(KeyError), session._add_directives({"c": 3}):
            raise KeyError
        assert session._context_directives == {"opfusion_id": "a", "b": 1}
    assert session._context_directives == {}


def test_directives_and_auxiliary_tensors_are_kept():
    samba.session._add_directives({"a": 1})
    assert samba.session.directives == {"a": 1}
    tensor = samba.ones(2)
    assert samba.session.is_valid_aux_tensor_name("aux")
    samba.session.add_aux_tensor(tensor, "aux")
    assert not samba.session.is_valid_aux_tensor_name("aux")
    samba.session.add_aux_tensor(tensor, "aux")  # a second graph of the same model does so
    with pytest.raises(ArgumentError, match="found 'aux', expected a name that is not empty"):
        samba.session.add_aux_tensor(samba.ones(2), "aux")
    samba.session.reset()
    assert samba.session.directives == {} and samba.session.is_valid_aux_tensor_name("aux")


def test_dynamic_dimensions_are_declared(tmp_path):
    key = samba.session.create_dynamic_dim("batch", min=1, max=8, factor=2)
    assert key == "batch_min_1_max_8_factor_2"
    path = tmp_path / "dims.json"
    path.write_text(json.dumps({"seq": {"min": 2, "max": 4}}))
    samba.session.load_dynamic_dims_config(path)
    samba.session.load_dynamic_dims_config({"head": {"min": 1, "max": 1, "factor": 1}})
    dims = samba.session.dynamic_dims
    assert list(dims) == [key, "seq_min_2_max_4_factor_1", "head_min_1_max_1_factor_1"]
    assert (dims[key].min, dims[key].max, dims[key].factor) == (1, 8, 2)
    with pytest.raises(ArgumentError, match="found min 3, max 2, factor 1"):
        samba.session.create_dynamic_dim("bad", 3, 2)
    with pytest.raises(ArgumentError, match=r"'bad'\), max: found str '8', expected a whole"):
        samba.session.create_dynamic_dim("bad", 1, "8")
    assert len(dims) == 3


NO_RANGES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "found not JSON"),
    "no JSON": (b"{", "found not JSON"),
    "cut": (b'{"batch": {"min": 1', "found not JSON"),
    "no UTF-8": (b'{"\xff": 1}', "not JSON"),
    "a list": (b"[1]", r"found \[1\], expected for each dimension whole numbers min and max"),
    "null": (b"null", "expected"),
    "NaN": (b'{"seq": {"min": 1, "max": NaN}}', "NaN"),
    "a key twice": (b'{"seq": {"min": 1, "max": 2}, "seq": {"min": 1, "max": 3}}', "twice"),
    "nested": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested"),
    "5,000 digits": (b'{"seq": {"min": 1, "max": ' + b"9" * 5000 + b"}}", "not JSON"),
    "no max": (b'{"seq": {"min": 1}}', "found seq: {'min': 1}, expected"),
    "a number": (b'{"seq": 3}', "found seq: 3, expected"),
    "another key": (b'{"seq": {"min": 1, "max": 2, "step": 1}}', "'step': 1}, expected"),
    "text": (b'{"seq": {"min": "1", "max": 2}}', "found seq: {'min': '1', 'max': 2}"),
    "true": (b'{"seq": {"min": true, "max": 2}}', "found seq: {'min': True, 'max': 2}"),
    "backwards": (b'{"seq": {"min": 3, "max": 2}}', "dimension seq: found min 3, max 2, factor 1"),
    "no step": (b'{"seq": {"min": 1, "max": 2, "factor": 0}}', "dimension seq: .* factor 0"),
}


@pytest.mark.parametrize("content, message", NO_RANGES.values(), ids=NO_RANGES)
def test_a_file_without_ranges_is_named(tmp_path, content, message):
    path = tmp_path / "dims.json"
    path.write_bytes(content)
    with pytest.raises(ArgumentError, match=message) as caught:
        samba.session.load_dynamic_dims_config(path)
    assert str(path) in str(caught.value) and len(str(caught.value)) < 1500
    assert samba.session.dynamic_dims == {}


def test_of_ranges_of_which_one_is_backwards_none_is_declared():
    with pytest.raises(ArgumentError, match=r"dimension seq: found min 3, max 2"):
        samba.session.load_dynamic_dims_config(
            {"ok": {"min": 1, "max": 2}, "seq": {"min": 3, "max": 2}}
        )
    assert samba.session.dynamic_dims == {}


def test_a_missing_file_of_ranges_is_named(tmp_path):
    path = tmp_path / "none.json"
    with pytest.raises(ConfigUnreadable, match=r"none\.json: found No such file") as caught:
        samba.session.load_dynamic_dims_config(str(path))
    assert isinstance(caught.value.__cause__, FileNotFoundError)


# -- configuration ----------------------------------------------------------


@covers("samba.session.setup", ".setup(args)")
def test_setup_counts_as_the_command_line(tmp_path):
    scene = MLP.build()
    args = CompileArgs(output_folder=str(tmp_path), pef_name="configured", optim_level="o0", own=1)
    samba.session.setup(args)
    pef = samba.session.compile(scene.model, scene.inputs, scene.optimizer)
    assert Path(pef) == tmp_path / "configured" / "configured.pef"
    last = last_parsed_args()
    assert last is not None and last.own == 1 and last.batch_size == 1


@pytest.mark.parametrize("command", [{}, {"command": "compile"}], ids=["", "command"])
def test_setup_tells_what_does_nothing_and_sets_the_log_level(caplog, monkeypatch, command):
    monkeypatch.setattr(parsed, "deviations", Deviations())
    for _ in range(2):
        samba.session.setup(CompileArgs(num_tiles=4, arch="sn30", n_chips=1, own=1, **command))
    (text,) = told(caplog)
    assert text == "options accepted without effect: --num-tiles, --arch: for the hardware compiler"
    log = logging.getLogger("samba")
    try:
        samba.session.setup(CompileArgs(log_level="error"))
        assert log.level == logging.ERROR
    finally:
        log.setLevel(logging.NOTSET)


def test_setup_flattens_hydra_configurations():
    samba.session.setup(
        {"command": "run", "samba_run": RunArgs(pef="x.pef"), "samba_compile": {"o": 1}}
    )
    last = last_parsed_args()
    assert last is not None and last.pef == "x.pef" and not hasattr(last, "o")
    with pytest.raises(ArgumentError, match="found int, expected a pydantic model"):
        samba.session.setup(3)


def test_models_of_arguments_have_the_defaults_of_the_command_line():
    args = CompileArgs()
    assert (args.inference, args.mapping, args.num_tiles) == (False, "section", -1)
    assert args.resources_scaling_factors is not CompileArgs().resources_scaling_factors
    assert RunArgs().num_iterations == 100 and "pef_name" not in RunArgs.model_fields


def test_models_of_arguments_need_pydantic(ended):
    assert ended["pydantic"].returncode == 0
    assert ended["pydantic"].stdout.startswith(
        "samba.argconf.args needs the package pydantic, which is not installed. "
        "Install it with: pip install 'sambaflow-emulator[config]'\n"
    )


# -- tensors of the loaded program ------------------------------------------


def test_optimizer_state_is_found_by_name(scene):
    scene.run(hyperparam_dict={"momentum": 0.9})
    name = "mlp__first__weight__sgd0__momentum"
    handle = samba.session.optim_dict[name]
    assert not handle.has_data and handle.shape == (6, 4)
    close(handle.sn_data, scene.model.first.weight.sn_grad)
    assert {t.sn_name for t in samba.session._traced_tensors()} >= {"x", "y", "mlp__first__weight"}


def test_an_optimizer_moves_its_own_state(scene):
    scene.run()
    weight = scene.model.first.weight
    before = weight.detach().clone()
    scene.optimizer.cpu()
    momentum = scene.optimizer.state[weight]["momentum_buffer"]
    close(momentum, weight.sn_grad)
    assert torch.equal(weight.detach(), before)  # the host's weights are as they were
    momentum.zero_()
    scene.optimizer.rdu()
    assert samba.session.optim_dict["mlp__first__weight__sgd0__momentum"].sn_data.sum() == 0


# -- end of the process -----------------------------------------------------


@covers(
    "samba.session.atexit_register",
    ".atexit_register(func, args, kwargs)",
    ".use_abexit(func, args, kwargs)",
)
def test_exit_handlers_run_last_first_at_a_usual_end(ended):
    done = ended["usual"]
    assert done.stdout.splitlines() == [
        *("main 1 2", "after"),
        *("last", "first was registered", "python"),
    ]
    assert done.returncode == 0 and "ZeroDivisionError" in done.stderr


@covers("samba.session.atexit_register")
def test_without_abexit_handlers_run_as_those_of_python(ended):
    done = ended["plain"]
    assert done.stdout.splitlines() == ["end", "later", "ours and too", "python"]
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("failure", "status", "text"),
    [
        (FAILURES[0], 1, "ValueError: no data"),
        (FAILURES[1], 7, ""),
        (FAILURES[2], 1, "too bad"),
        (FAILURES[3], 1, "KeyboardInterrupt"),
    ],
)
@covers("samba.session.use_abexit")
def test_a_failure_under_abexit_ends_the_process_at_once(failure, status, text, ended):
    done = ended[failure]
    assert done.stdout.splitlines() == ["main", "ours"]
    assert done.returncode == status and text in done.stderr
