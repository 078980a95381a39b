"""Names, paths, files and variables of every kind beside a session: an error of this project that
quotes what was given."""

from __future__ import annotations

from argparse import Namespace

import pytest

import samba
import samba.utils as utils
from samba.errors import SambaError
from samba.utils.argparser import parse_yaml_to_args
from samba.utils.dataset.mnist import IdxError, read_idx
from samba.utils.flat_yaml import YamlError, parse_flat_yaml
from tests.samba.session.test_damaged_inputs import NAMES, X, Y
from tests.samba.worlds import DROPOUT, MLP


@pytest.fixture
def scene(pefs):
    scene = pefs.loaded(DROPOUT)
    scene.run((samba.from_torch_tensor(X, name="x"), Y), train=False)
    return scene


# -- names and paths ---------------------------------------------------------------------------


def test_names_of_tensors_that_do_not_exist(scene):
    for name in NAMES.values():
        tensor = samba.from_torch_tensor(X, name=name)
        for call in (
            lambda name=name: samba.session.get_tensors_by_name([name]),
            lambda name=name: samba.session.get_samba_tensor_by_name(name),
            lambda name=name: samba.session.update_tensor(name, None),
            lambda tensor=tensor: tensor.sn_data,
            lambda tensor=tensor: setattr(tensor, "sn_data", X),
            lambda tensor=tensor: samba.session.run((tensor, Y)),
            lambda name=name: samba.session.create_dynamic_dim(name, 5, 1),
            lambda name=name: samba.session.load_dynamic_dims_config(name),
            lambda name=name: samba.session.load_dynamic_dims_config({name: {"min": 0.5}}),
            lambda name=name: samba.SambaSession(name),
            lambda name=name: parse_yaml_to_args(name, Namespace()),
        ):
            with pytest.raises(SambaError) as caught:
                call()
            assert str(caught.value).isprintable() and len(str(caught.value)) < 2500


BAD_PEF_NAMES = {**NAMES, "a root": "/x"}


@pytest.mark.parametrize("what", ["NUL", "surrogate", "long", "a root"])
def test_names_of_pefs(tmp_path, what):
    scene = MLP.build()
    with pytest.raises(SambaError) as caught:
        scene.compile(tmp_path, pef_name=BAD_PEF_NAMES[what])
    assert str(caught.value).isprintable() and not list(tmp_path.iterdir())


@pytest.mark.parametrize("key", ["output_folder", "pef"])
@pytest.mark.parametrize("what", ["NUL", "surrogate", "long", "number", "list"])
def test_folders_of_pefs(tmp_path, monkeypatch, key, what):
    monkeypatch.chdir(tmp_path)
    path = {"number": 5, "list": ["a"]}.get(what) or NAMES[what]
    more = {"command": "compile", "pef_name": ""} if key == "pef" else {}
    scene = MLP.build()
    with pytest.raises(SambaError) as caught:
        scene.compile(tmp_path, **{key: path}, **more)
    assert str(caught.value).isprintable() and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "what",
    [
        "surrogate",
        *(pytest.param(w, marks=pytest.mark.slow) for w in ("NUL", "newline", "escape", "long")),
    ],
)
@pytest.mark.parametrize("of", ["tensor", "region", "parameter", "program", "argin", "metadata"])
def test_names_in_a_pef(tmp_path, what, of):
    """What no PEF holds is an error that quotes it, and leaves no folder behind."""
    name, scene, more = NAMES[what], MLP.build(), {}
    if of == "tensor":
        scene.inputs = (samba.from_torch_tensor(X, name=name), scene.inputs[1])
    elif of == "region":
        scene.inputs = (
            samba.from_torch_tensor(X, name="x", region_name=name),
            scene.inputs[1],
        )
    elif of == "parameter":
        scene.model.first.weight.sn_name = name
    elif of == "argin":
        scene.optimizer = samba.optim.SGD(scene.model.parameters(), lr=0.1, argin_region_name=name)
    elif of == "program":
        more = {"name": name}
    else:
        more = {"pef_metadata": {name: name}}
    config = {"output_folder": str(tmp_path), "pef_name": "mlp"}
    with pytest.raises(SambaError) as caught:
        samba.session.compile(
            scene.model, scene.inputs, scene.optimizer, config_dict=config, **more
        )
    lines = str(caught.value).splitlines()
    assert all(line.isprintable() for line in lines) and len(str(caught.value)) < 5000
    assert not list(tmp_path.iterdir())


# -- files, variables and numbers beside them --------------------------------------------------


@pytest.mark.parametrize("content", [b"a: \xff", b"\xff\xfe", b"a: 1__0", b"a: " + b"9" * 5000])
def test_damaged_yaml_files(tmp_path, content):
    file = tmp_path / "options.yaml"
    file.write_bytes(content)
    with pytest.raises(SambaError) as caught:
        parse_yaml_to_args(file, Namespace())
    assert str(file) in str(caught.value) and len(str(caught.value)) < 1500


def test_yaml_numbers_of_some_digits_are_read():
    assert parse_flat_yaml("a: 1_000") == {"a": 1000}
    with pytest.raises(YamlError, match="YAML:1"):
        parse_flat_yaml("a: 1_")


@pytest.mark.parametrize(
    "content",
    [None, b"", b"\x1f\x8b", b"\x1f\x8b\x08\0\0\0\0\0\0\xff\xff\xff\xff\xff", b"\0\0\x08\x7f"],
)
def test_damaged_idx_files(tmp_path, content):
    file = tmp_path / "train-images-idx3-ubyte"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    with pytest.raises(IdxError) as caught:
        read_idx(file)
    assert caught.value.path == str(file)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BAGUA_DEFAULT_BUCKET_SIZE", "9" * 5000),
        ("BAGUA_DEFAULT_BUCKET_SIZE", "-1"),
        ("BAGUA_DEFAULT_BUCKET_SIZE", "\x1b[31m"),
        ("BAGUA_DEFAULT_BUCKET_SIZE", "1e6"),
        ("CCL_TIMEOUT", "nan"),
        ("CCL_TIMEOUT", "inf"),
        ("CCL_TIMEOUT", "-1"),
        ("CCL_TIMEOUT", "soon"),
        ("SN_DP_ENGINE", "gloo\n"),
        ("RANK", "9" * 5000),
        ("RANK", "²"),
        ("RANK", "2"),
        ("WORLD_SIZE", "two"),
        ("MASTER_PORT", "65536"),
        ("MASTER_PORT", "-1"),
    ],
)
def test_environment_variables(monkeypatch, name, value):
    from samba.distributed import environment, settings

    for key, text in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
        name: value,
    }.items():
        monkeypatch.setenv(key, text)
    with pytest.raises(SambaError) as caught:
        settings.bucket_bytes()
        settings.deadline_seconds()
        settings.engine_name()
        environment.detect()
    text = str(caught.value)
    assert name in text and text.isprintable() and len(text) < 500


@pytest.mark.parametrize("tasks", ["1(x999999999999)", "9" * 5000, "1(x" + "9" * 5000 + ")"])
def test_slurms_tasks_that_no_cluster_has(tasks):
    from samba.distributed.environment import detect

    found = detect(
        {
            "SLURM_PROCID": "0",
            "SLURM_NTASKS": "2",
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_TASKS_PER_NODE": tasks,
        }
    )
    assert found is not None and found.local_size == 0


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, "1"])
def test_times_that_are_never_over(pefs, seconds):
    scene = pefs.loaded(MLP)
    with pytest.raises(SambaError, match="min_duration"):
        utils.measure_performance(
            scene.model, scene.inputs, 5, n_iterations=1, min_duration=seconds
        )
    with pytest.raises(SambaError, match="min_duration"):
        utils.measure_sections(scene.model, scene.inputs, min_duration=seconds)


def test_signs_of_life_that_no_rank_wrote():
    from samba.distributed.watchdog import _sign

    for text in (b"", b"[]", b"{}", b'{"blames": 1}', b'{"blames": [], "x": 1}', b"[" * 100_000):
        assert _sign(text) is None
