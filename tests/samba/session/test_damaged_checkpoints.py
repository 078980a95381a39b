"""Damaged checkpoints: an error with the file's path, and the model as it was."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from samba.errors import SambaError
from samba.test import TestWithGold
from samba.utils.checkpoint import BadCheckpoint, load_sharded_checkpoint, save_checkpoint

INDEX = "model.safetensors.index.json"
FIRST, SECOND = "model-1-of-2.safetensors", "model-2-of-2.safetensors"


def tensor_file(header: Any, data: bytes = b"\0" * 12, size: int | None = None) -> bytes:
    """A safetensors file with a header of one's own, as an object or as text."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def entry(dtype: Any = "F32", shape: Any = (3,), offsets: Any = (0, 12)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def header(**fields: Any) -> bytes:
    """A file whose only tensor is the model's bias, with some fields changed."""
    return tensor_file({"bias": entry() | fields})


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(2, 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole checkpoint of a linear layer in two files: each of the tests damages a part of it."""
    other = nn.Linear(2, 3)
    weight = other.weight.detach().numpy().tobytes()
    form = {"weight": entry(shape=[3, 2], offsets=[0, 24])}
    (tmp_path / FIRST).write_bytes(tensor_file(form, weight))
    (tmp_path / SECOND).write_bytes(header())
    index = {"metadata": {}, "weight_map": {"weight": FIRST, "bias": SECOND}}
    (tmp_path / INDEX).write_text(json.dumps(index))
    return tmp_path


def refuses(place: Path, named: Path | str, *parts: str, **options: Any) -> None:
    """Loading is an error that names a file; the model keeps its bits and its memory."""
    model = linear()
    before = {k: (v.data_ptr(), v.clone()) for k, v in model.state_dict().items()}
    with pytest.raises(BadCheckpoint) as caught:
        load_sharded_checkpoint(model, place, **options)
    error = caught.value
    assert error.path == str(named)
    missing = [part for part in parts if part not in str(error)]
    assert not missing, f"{missing} not in: {error}"
    assert str(error).isprintable() and len(str(error)) < 4000
    for key, value in model.state_dict().items():
        assert value.data_ptr() == before[key][0] and torch.equal(value, before[key][1])


def test_what_the_tests_damage_is_whole(folder):
    assert load_sharded_checkpoint(linear(), folder) == ([], [])


GOOD = header()

SHARDS: dict[str, bytes] = {
    "empty": b"",
    "cut in the size": GOOD[:5],
    "cut in the header": GOOD[:40],
    "cut in the data": GOOD[:-1],
    "longer": GOOD + b"\0",
    "header of no bytes": tensor_file(b""),
    "header of 2**64 - 1 bytes": tensor_file({}, size=2**64 - 1),
    "header of a gigabyte": tensor_file({}, size=2**30),
    "header within another": tensor_file({"bias": entry()}, size=9),
    "no JSON": tensor_file(b"\x80\x02}q\x00."),
    "text that is not UTF-8": tensor_file(b'{"\xff": 1}'),
    "a list": tensor_file([1]),
    "a number": tensor_file(b"1"),
    "nested lists": tensor_file(b"[" * 200_000 + b"]" * 200_000),
    "nested objects": tensor_file(b'{"a":' * 200_000 + b"1" + b"}" * 200_000),
    "NaN": tensor_file(b'{"bias": NaN}'),
    "Infinity": header(data_offsets=[0, float("inf")]),
    "a number of 5,000 digits": header(shape=[10**5]).replace(b"100000", b"1" * 5000),
    "a key twice": tensor_file(b'{"bias": 1, "bias": {"dtype": "F32"}}'),
    "a field twice": tensor_file(
        b'{"bias":{"dtype":"F32","dtype":"I32","shape":[3],"data_offsets":[0,12]}}',
    ),
    "an entry that is none": tensor_file({"bias": [0, 12]}),
    "no dtype": tensor_file({"bias": {"shape": [3], "data_offsets": [0, 12]}}),
    "unknown dtype": header(dtype="F4"),
    "a number as dtype": header(dtype=5),
    "a list as dtype": header(dtype=["F32"]),
    "an object as shape": header(shape={"0": 3}),
    "a size below zero": header(shape=[-3]),
    "a size of true": header(shape=[True]),
    "a size of 3.0": header(shape=[3.0]),
    "a text as size": header(shape=["3"]),
    "a size above 2**63": header(shape=[2**63]),
    "a product above 2**63": header(shape=[2**40, 2**40]),
    "a huge product with a zero": header(shape=[2**40, 0, 2**40], data_offsets=[0, 0]),
    "65 dimensions": header(shape=[1] * 65),
    "offsets beyond the file": header(data_offsets=[0, 4000]),
    "offsets turned round": header(data_offsets=[12, 0]),
    "offsets below zero": header(data_offsets=[-12, 0]),
    "one offset": header(data_offsets=[12]),
    "three offsets": header(data_offsets=[0, 12, 12]),
    "another size than the shape's": header(shape=[4]),
    "a hole before": tensor_file({"bias": entry(offsets=[4, 16])}, b"\0" * 16),
    "overlapping tensors": tensor_file(
        {"bias": entry(), "other": entry(offsets=[4, 16])}, b"\0" * 16
    ),
    "the same bytes twice": tensor_file({"bias": entry(), "other": entry()}),
    "metadata that is none": tensor_file({"__metadata__": [1], "bias": entry()}),
    "a number in the metadata": tensor_file({"__metadata__": {"a": 1}, "bias": entry()}),
    "a lone surrogate as name": tensor_file(
        b'{"\\ud800": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}'
    ),
    "a pickle": pickle.dumps({"bias": [1.0, 2.0, 3.0]}),
    "a PEF": b"PEF\0" + b"\1" * 400,
}


@pytest.mark.parametrize("case", SHARDS)
def test_a_damaged_file_of_two(folder, case):
    """The first of the two is whole: nothing of it is loaded all the same."""
    (folder / SECOND).write_bytes(SHARDS[case])
    refuses(folder, folder / SECOND, "no safetensors file: ")
    refuses(folder / SECOND, folder / SECOND, "no safetensors file: ")


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (
            tensor_file({"bias": entry(shape=[1, 3])}),
            "bias has shape [1, 3] torch.float32, the model wants [3]",
        ),
        (header(dtype="I32"), "torch.int32, the model wants [3] torch.float32"),
        (header(dtype="F8_E8M0", shape=[12]), "bias has dtype F8_E8M0, expected one of F64, F32"),
    ],
)
def test_another_form_than_the_models(folder, content, part):
    (folder / SECOND).write_bytes(content)
    refuses(folder, folder / SECOND, part)
    refuses(folder / SECOND, folder / SECOND, part)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\0b", "'a\\x00b'"),
        ("\x1b[31mred\n", "'\\x1b[31mred\\n'"),
        ("\u202egpj", "'\\u202egpj'"),
        ("", "''"),
        ("n" * 10_000, "nnnn"),
        ("../../etc/passwd", "'../../etc/passwd'"),
    ],
)
def test_names_of_tensors_are_shown_escaped_and_cut(folder, name, shown):
    (folder / SECOND).write_bytes(tensor_file({name: entry()}))
    (folder / INDEX).unlink()
    refuses(folder / SECOND, folder / SECOND, shown, "are not in the model")


def test_a_thousand_names_are_not_all_listed(folder):
    form = {f"t{n}": entry(offsets=[12 * n, 12 * n + 12]) for n in range(1000)}
    (folder / SECOND).write_bytes(tensor_file(form, b"\0" * 12_000))
    refuses(folder / SECOND, folder / SECOND, "'t0'", "and 992 more")


def test_a_tensor_may_begin_at_any_byte(tmp_path):
    """The format does not align; what the package safetensors reads is read."""
    form = {
        "bias": entry("U8", [1], [0, 1]),
        "weight": entry(shape=[3, 2], offsets=[1, 25]),
    }
    values = torch.arange(6, dtype=torch.float32)
    file = tmp_path / "model.safetensors"
    file.write_bytes(tensor_file(form, b"\7" + values.numpy().tobytes()))
    model = linear()
    model.bias = nn.Parameter(torch.zeros(1, dtype=torch.uint8), requires_grad=False)
    assert load_sharded_checkpoint(model, file) == ([], [])
    assert torch.equal(model.weight, values.reshape(3, 2)) and model.bias.item() == 7


INDICES: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "empty": (b"", ("it is not a valid checkpoint index", "not JSON")),
    "cut": (b'{"weight_map": {"weight": "mod', ("it is not a valid checkpoint index", "not JSON")),
    "no UTF-8": (b'{"weight_map": {"\xff": "a"}}', ("not JSON",)),
    "a list": (b"[]", ('it must hold {"weight_map"',)),
    "null": (b"null", ('it must hold {"weight_map"',)),
    "no map": (b"{}", ('it must hold {"weight_map"',)),
    "a list as map": (b'{"weight_map": ["a"]}', ('it must hold {"weight_map"',)),
    "numbers in the map": (b'{"weight_map": {"weight": 1}}', ('it must hold {"weight_map"',)),
    "null in the map": (b'{"weight_map": {"weight": null}}', ('it must hold {"weight_map"',)),
    "a list in the map": (b'{"weight_map": {"weight": ["a"]}}', ('it must hold {"weight_map"',)),
    "NaN": (b'{"metadata": {"total_size": NaN}, "weight_map": {}}', ("NaN",)),
    "a key twice": (b'{"weight_map": {"weight": "a", "weight": "b"}}', ("the key weight twice",)),
    "nested": (b'{"a":' * 200_000 + b"1" + b"}" * 200_000, ("nested too deeply",)),
    "5,000 digits": (b'{"total_size": ' + b"1" * 5000 + b', "weight_map": {}}', ("not JSON",)),
}


@pytest.mark.parametrize("case", INDICES)
def test_a_damaged_index(folder, case):
    content, parts = INDICES[case]
    (folder / INDEX).write_bytes(content)
    refuses(folder, folder / INDEX, *parts)
    refuses(folder / INDEX, folder / INDEX, *parts)


@pytest.mark.parametrize(
    "name",
    [
        "../outside.safetensors",
        "{folder}/../outside.safetensors",
        "sub/inside.safetensors",
        "missing.safetensors",
        "dangling.safetensors",
        "loop.safetensors",
        "pipe.safetensors",
        "folder.safetensors",
        ".",
        "..",
        "",
        "a\0.safetensors",
        "\ud800.safetensors",
        "n" * 10_000,
        "\x1b[2J.safetensors",
    ],
)
def test_an_index_leads_only_to_files_beside_it(folder, name):
    outside = folder.parent / "outside.safetensors"
    outside.write_bytes(GOOD)
    (folder / "sub").mkdir()
    (folder / "sub" / "inside.safetensors").write_bytes(GOOD)
    (folder / "folder.safetensors").mkdir()
    (folder / "dangling.safetensors").symlink_to(folder / "nowhere")
    (folder / "loop.safetensors").symlink_to(folder / "loop.safetensors")
    os.mkfifo(folder / "pipe.safetensors")
    try:
        name = name.format(folder=folder)
        index = {"weight_map": {"weight": FIRST, "bias": name}}
        (folder / INDEX).write_text(json.dumps(index))
        refuses(folder, folder / INDEX, "which is not in its folder")
    finally:
        outside.unlink()


def test_a_link_to_a_file_is_followed(folder):
    """Caches of downloads are folders of such links."""
    blobs = folder / "blobs"
    blobs.mkdir()
    (folder / SECOND).rename(blobs / "0123abcd")
    (folder / SECOND).symlink_to(blobs / "0123abcd")
    assert load_sharded_checkpoint(linear(), folder) == ([], [])


def test_one_tensor_in_two_files(folder):
    (folder / FIRST).write_bytes(GOOD)
    refuses(folder, folder / SECOND, f"'bias' is in {FIRST} as well")


@pytest.mark.parametrize(
    "name", ["nowhere", "a\0b", "\ud800", "n" * 10_000, "new\nline\x1b[31m", "x/" * 3000]
)
def test_paths_that_lead_to_nothing(tmp_path, name):
    with pytest.raises(BadCheckpoint) as caught:
        load_sharded_checkpoint(linear(), tmp_path / name)
    assert str(caught.value).isprintable()
    assert "found no checkpoint" in str(caught.value) or "cannot be read" in str(caught.value)


@pytest.mark.parametrize("path", [None, 5, 1.5, ["a"], b"bytes"])
def test_what_is_no_path(path):
    with pytest.raises(SambaError, match=r"expected the path of a file or folder"):
        load_sharded_checkpoint(linear(), path)


def test_a_file_that_cannot_be_read(folder, monkeypatch):
    """As where its permissions, or its disk, do not allow it."""
    import safetensors

    def fails(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(safetensors, "safe_open", fails)
    refuses(folder, folder / FIRST, "cannot be read: Permission denied")


@given(st.data())
def test_a_changed_header_is_an_error_or_loads(tmp_path_factory, data):
    """Bytes of the header and its size are changed at random; nothing foreign is raised."""
    folder = tmp_path_factory.getbasetemp() / "fuzzed"
    folder.mkdir(exist_ok=True)
    file = folder / "model.safetensors"
    form = {"weight": entry(shape=[3, 2], offsets=[0, 24]), "bias": entry(offsets=[24, 36])}
    content = bytearray(tensor_file(form, b"\1" * 36))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 37))
        change = data.draw(st.sampled_from(["byte", "cut", "token"]))
        if change == "byte":
            content[place] = data.draw(st.integers(0, 255))
        elif change == "cut":
            del content[place : place + data.draw(st.integers(1, 9))]
        else:
            tokens = [b"[", b"]", b"{", b"}", b'"', b",", b"1e9", b"-", b"NaN", b"null", b"\\u0000"]
            content[place:place] = data.draw(st.sampled_from(tokens))
        if data.draw(st.booleans()):
            size = len(content) - 8 - 36
            content[:8] = struct.pack("<Q", max(size, 0))
    file.write_bytes(content)
    model = linear()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    try:
        load_sharded_checkpoint(model, file)
    except BadCheckpoint as error:
        assert error.path == str(file)
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


# -- checkpoints that torch wrote --------------------------------------------------------------


class Runs:
    """Runs code where it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def sparse() -> dict[str, torch.Tensor]:
    return {"weight": torch.eye(3)[:, :2].to_sparse(), "bias": torch.zeros(3)}


STATE = {"weight": torch.zeros(3, 2), "bias": torch.zeros(3)}

PICKLES: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "empty": (lambda marker: b"", "torch cannot load it"),
    "text": (lambda marker: b"no checkpoint", "torch cannot load it"),
    "cut": (lambda marker: saved(STATE)[:-200], "torch cannot load it"),
    "cut in the middle": (lambda marker: saved(STATE)[:300], "torch cannot load it"),
    "bytes of its pickle changed": (
        lambda marker: saved(STATE).replace(b"weight", b"wei\xffht"),
        "torch cannot load it",
    ),
    "code": (lambda marker: saved({"weight": Runs(marker)}), "torch cannot load it"),
    "a bare pickle of code": (lambda marker: pickle.dumps(Runs(marker)), "torch cannot load it"),
    "a list": (lambda marker: saved([torch.zeros(3)]), "it holds no dict of tensors"),
    "numbers": (lambda marker: saved({"weight": 1.0}), "no dict of tensors"),
    "keys that are not names": (lambda marker: saved({1: torch.zeros(3)}), "no dict of tensors"),
    "a dict in a dict": (lambda marker: saved({"model": STATE}), "no dict of tensors"),
    "sparse": (lambda marker: saved(sparse()), "tensor weight: found a sparse_coo tensor"),
    "meta": (
        lambda marker: saved({"bias": torch.zeros(3), "weight": torch.empty(3, 2, device="meta")}),
        "tensor weight: found a tensor on device meta",
    ),
    "another shape": (lambda marker: saved(STATE | {"bias": torch.zeros(4)}), "bias has shape [4]"),
}


@pytest.mark.parametrize("case", PICKLES)
def test_damaged_pickled_checkpoints(tmp_path, case):
    make, part = PICKLES[case]
    marker, file = tmp_path / "code ran", tmp_path / "pytorch_model.bin"
    file.write_bytes(make(marker))
    refuses(tmp_path, file, part)
    assert not marker.exists()


def test_torchs_advice_to_load_with_all_rights_is_not_passed_on(tmp_path):
    file = tmp_path / "pytorch_model.bin"
    file.write_bytes(saved({"weight": Runs(tmp_path / "code ran")}))
    with pytest.raises(BadCheckpoint) as caught:
        load_sharded_checkpoint(linear(), file)
    assert "weights_only" not in str(caught.value) and "mkdir" in str(caught.value)


GOLD: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "cut": (lambda marker: saved(STATE)[:-200], "torch cannot load it"),
    "code": (lambda marker: saved({"a": Runs(marker)}), "torch cannot load it"),
    "numbers": (lambda marker: saved({"a": 1.0}), "no dict of tensors"),
}


@pytest.mark.parametrize("case", GOLD)
def test_damaged_gold_files(scene, tmp_path, case):
    make, part = GOLD[case]
    marker = tmp_path / "code ran"
    gold = tmp_path / "gold.pt"
    content = make(marker)
    gold.write_bytes(content)
    with pytest.raises(BadCheckpoint) as caught:
        TestWithGold(Namespace(gold_file_path=gold), "mlp", scene.model).test()
    assert caught.value.path == str(gold) and part in str(caught.value)
    assert not marker.exists() and gold.read_bytes() == content


def test_what_cannot_be_saved_leaves_the_file(tmp_path):
    file = tmp_path / "model.safetensors"
    save_checkpoint(linear(), file)
    kept = file.read_bytes()
    model = linear()
    model.register_buffer("odd", torch.zeros(2, dtype=torch.complex128))
    with pytest.raises(BadCheckpoint, match=r"linear__odd has torch\.complex128"):
        save_checkpoint(model, file)
    model = linear()
    model.register_buffer("freed", torch.zeros(2))
    model.freed.untyped_storage().resize_(0)
    with pytest.raises(SambaError, match="freed"):
        save_checkpoint(model, file)
    model = linear()
    model.register_buffer("sparse", torch.eye(2).to_sparse())
    with pytest.raises(SambaError, match="sparse"):
        save_checkpoint(model, file)
    for path in (tmp_path / "a\0b", tmp_path / ("n" * 10_000), tmp_path / "none" / "x", tmp_path):
        with pytest.raises(SambaError):
            save_checkpoint(linear(), path)
    assert file.read_bytes() == kept and [p.name for p in tmp_path.iterdir()] == [file.name]
