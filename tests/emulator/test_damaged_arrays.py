"""Damaged ``.npz`` files for ``python -m emulator run``, and outputs that cannot be written."""

from __future__ import annotations

import io
import os
import struct
import tracemalloc
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import emulator.__main__ as cli
from emulator.arrays import BadArrays, UnwritableOutput, read_arrays, write_arrays
from pef_schema import write_pef
from samba.compiler.build import build_program
from samba.compiler.sections import CompileOptions
from tests.models.zoo import ZOO
from tests.tracing import trace

X = np.arange(6, dtype=np.float32).reshape(2, 3)


class Runs:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("code ran",)


def npy(array: np.ndarray = X, **options: Any) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, **options)
    return buffer.getvalue()


def npy_of(header: str, data: bytes = X.tobytes(), version: bytes = b"\1\0") -> bytes:
    """An array file with a header of one's own."""
    text = header.encode("latin1")
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text + data


def form(descr: str = "'<f4'", shape: str = "(2, 3)", fortran: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n"


def npz(*members: tuple[str, bytes], packed: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", packed) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of two members of one name
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


def one(content: bytes) -> bytes:
    return npz(("x.npy", content))


def changed(content: bytes, old: bytes, new: bytes) -> bytes:
    assert old in content and len(old) == len(new)
    return content.replace(old, new)


GOOD = one(npy())
DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not an .npz file of plain arrays"),
    "text": (b"no archive", "not an .npz file of plain arrays"),
    "a pickle": (b"\x80\x02cos\nmkdir\nU\x01aR.", "not an .npz file of plain arrays"),
    "one array": (npy(), "one array without a name, [2, 3] float32"),
    "one damaged array": (b"\x93NUMPY\1\0", "the array has no header"),
    "cut": (GOOD[:-9], "not an .npz file of plain arrays"),
    "cut at the front": (GOOD[50:], "not an .npz file of plain arrays"),
    "no array inside": (npz(), "it holds no array"),
    "another file inside": (npz(("x.txt", b"1")), "it holds x.txt, which is not an array"),
    "data changed": (changed(GOOD, X.tobytes(), b"\xff" * 24), "Bad CRC-32"),
    "a member cut": (one(npy()[:-4]), "array x ends after 20 of 24 bytes"),
    "a member longer": (one(npy() + b"\0"), "more than the 24 bytes of its shape"),
    "an empty member": (one(b""), "array x has no header that NumPy can read"),
    "no magic": (one(b"PK" + npy()[2:]), "array x has no header that NumPy can read"),
    "version 9": (one(npy_of(form(), version=b"\x09\0")), "array x has version (9, 0)"),
    "version 3": (one(npy(version=(3, 0))), "array x has version (3, 0)"),
    "header of no dict": (one(npy_of("[1]")), "array x has no header"),
    "header that is code": (
        one(npy_of("__import__('os').mkdir('code ran')")),
        "array x has no header",
    ),
    "header nested": (one(npy_of("(" * 9000)), "array x has no header"),
    "header of minuses": (one(npy_of("-" * 9000 + "1")), "array x has no header"),
    "header too long": (one(npy_of(form() + " " * 60_000)), "array x has no header"),
    "header cut": (one(npy_of(form())[:30]), "array x has no header"),
    "objects": (one(npy(np.array([{}], object))), "it holds Python objects"),
    "objects that run code": (one(npy(np.array([Runs()], object))), "it holds Python objects"),
    "objects by the header": (one(npy_of(form("'|O'"))), "it holds Python objects"),
    "objects in fields": (one(npy_of(form("[('a', '|O')]"))), "it holds Python objects"),
    "fields": (one(npy(np.zeros(2, [("a", "f4"), ("b", "i4")]))), "which is not a numeric type"),
    "texts": (one(npy(np.array(["a"]))), "which is not a numeric type"),
    "bytes": (one(npy(np.array([b"a"]))), "which is not a numeric type"),
    "dates": (one(npy(np.array([0], "M8[s]"))), "which is not a numeric type"),
    "void": (one(npy(np.zeros(2, "V8"))), "which is not a numeric type"),
    "unknown type": (one(npy_of(form("'<f99'"))), "array x has no header"),
    "text of a gigabyte": (one(npy_of(form("'<U268435456'"))), "which is not a numeric type"),
    "a size below zero": (one(npy_of(form(shape="(-1, 3)"))), "expected sizes from 0 on"),
    "a size of true": (one(npy_of(form(shape="(True, 3)"))), "expected sizes from 0 on"),
    "a size of 2.0": (one(npy_of(form(shape="(2.0, 3)"))), "array x has no header"),
    "a size above 2**63": (one(npy_of(form(shape=f"({2**63},)"))), "expected sizes from 0 on"),
    "a huge shape": (one(npy_of(form(shape=f"({2**40}, 3)"))), "found shape [1099511627776, 3]"),
    "another shape": (one(npy(X.T.copy())), "found shape [3, 2]"),
    "another name": (npz(("z.npy", npy())), "no tensor z"),
    "a name with control characters": (npz(("\x1b[2J\n.npy", npy())), "no tensor \\x1b[2J\\n"),
    "a path as name": (npz(("../x.npy", npy())), "no tensor ../x"),
    "an array twice": (npz(("x.npy", npy()), ("x.npy", npy(X + 1))), "two arrays named x"),
    "packed with lzma": (
        npz(("x.npy", npy()), packed=zipfile.ZIP_LZMA),
        "has an encoding that numpy does not use",
    ),
    "locked": (
        changed(GOOD, b"PK\1\2\x14\3\x14\0\0\0", b"PK\1\2\x14\3\x14\0\1\0"),
        "has an encoding",
    ),
    "a bomb": (
        npz(("x.npy", npy() + b"\0" * 2**26), packed=zipfile.ZIP_DEFLATED),
        "more than the 24 bytes of its shape",
    ),
    "a member of another kind": (npz(("x.npy/", b"")), "which is not an array"),
}


def fits(name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """The program of these tests takes an x of one shape."""
    if name != "x":
        raise BadArrays(path="p", reason=f"no tensor {name.encode('unicode_escape').decode()}")
    if shape != X.shape:
        raise BadArrays(path="p", reason=f"found shape {list(shape)}")


@pytest.fixture
def inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file(inside, case):
    content, part = DAMAGED[case]
    file = inside / "in.npz"
    file.write_bytes(content)
    with pytest.raises(BadArrays) as caught:
        read_arrays(str(file), fits, ["x"])
    text = str(caught.value)
    assert part in text and text.isprintable() and len(text) < 1000
    assert caught.value.path in (str(file), "p")
    assert not (inside / "code ran").exists()
    assert file.read_bytes() == content


def test_what_the_tests_damage_is_whole(inside):
    (inside / "in.npz").write_bytes(GOOD)
    assert np.array_equal(read_arrays("in.npz", fits)["x"], X)


@pytest.mark.parametrize(
    "array",
    [np.asfortranarray(X), X.astype(">f4"), X.astype(np.float16), X.astype(np.complex64), X > 2],
    ids=["columns first", "big-endian", "half", "complex", "bool"],
)
@pytest.mark.parametrize("packed", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_forms_that_numpy_writes(inside, array, packed):
    (inside / "in.npz").write_bytes(npz(("x.npy", npy(array)), packed=packed))
    found = read_arrays("in.npz", fits)["x"]
    assert np.array_equal(found, array) and found.dtype == array.dtype.newbyteorder("=")
    assert found.flags.c_contiguous and found.dtype.isnative


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1, 1, 1)])
def test_shapes_without_and_of_one_element(inside, shape):
    np.savez("in.npz", x=np.ones(shape, np.float32))
    assert read_arrays("in.npz", lambda *_: None)["x"].shape == shape


@pytest.fixture
def peak():
    """Bytes that Python and numpy have held at most since the last ``reset_peak``."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def test_a_bomb_costs_no_memory(inside, peak):
    """64 MiB of zeros, packed into 64 KiB."""
    content = npz(("x.npy", npy() + b"\0" * 2**26), packed=zipfile.ZIP_DEFLATED)
    (inside / "in.npz").write_bytes(content)
    tracemalloc.reset_peak()
    with pytest.raises(BadArrays, match="more than the 24 bytes of its shape"):
        read_arrays("in.npz", lambda *_: None)
    assert len(content) < 2**17 and peak() < 2**23


def test_a_table_of_contents_without_end(inside):
    content = npz(*[(f"{n}.npy", b"") for n in range(20)])
    place = content.rindex(b"PK\5\6")
    claim = struct.pack("<L", 2**30)
    (inside / "in.npz").write_bytes(content[: place + 12] + claim + content[place + 16 :])
    with pytest.raises(BadArrays, match=r"not an \.npz file of plain arrays"):
        read_arrays("in.npz", fits)


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("nowhere.npz", "there is no such file"),
        ("folder", "regular file"),
        ("pipe", "not a regular file"),
        ("dangling", "there is no such file"),
        ("loop", "cannot be read"),
        ("a\0b", "not a valid path"),
        ("\ud800", "not a valid path"),
        ("n" * 10_000, "cannot be read"),
        ("new\nline\x1b[31m", "'"),
        ("", "there is no such file"),
    ],
)
def test_paths_that_are_no_such_file(inside, path, part):
    (inside / "folder").mkdir()
    os.mkfifo(inside / "pipe")
    (inside / "dangling").symlink_to("nowhere")
    (inside / "loop").symlink_to("loop")
    with pytest.raises(BadArrays) as caught:
        read_arrays(path, fits)
    text = str(caught.value)
    assert (part in text or "directory" in text.lower()) and text.isprintable()


@given(st.data())
def test_changed_bytes_are_an_error_or_an_array(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp() / "fuzzed arrays"
    folder.mkdir(exist_ok=True)
    packed = data.draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
    content = bytearray(npz(("x.npy", npy()), packed=packed))
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file = folder / "in.npz"
    file.write_bytes(content)
    try:
        found = read_arrays(str(file), fits)
    except BadArrays:
        return
    assert found["x"].shape == X.shape


# -- outputs -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pef(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arrays")
    model, inputs = ZOO["mlp"].model(), ZOO["mlp"].inputs()
    write_pef(
        folder / "mlp.pef", build_program(trace(model, inputs), [], CompileOptions(name="mlp"))
    )
    np.savez(folder / "in.npz", x=inputs[0].numpy(), y=inputs[1].numpy())
    return folder / "mlp.pef"


def run(pef: Path, *arguments: str) -> int:
    return cli.main(["run", str(pef), str(pef.parent / "in.npz"), *arguments])


@pytest.mark.parametrize("name", ["out.npz", "out", "out.pef.txt", "späßchen \u202e\n"])
def test_outputs_have_the_name_that_is_given(pef, tmp_path, capsys, name):
    assert run(pef, "--output", str(tmp_path / name)) == 0
    assert [p.name for p in tmp_path.iterdir()] == [name]
    with np.load(tmp_path / name) as found:
        assert "mlp__criterion__crossentropyloss__outputs__0" in found.files
        assert all(np.isfinite(found[n]).all() for n in found.files)
    capsys.readouterr()


def test_outputs_replace_no_input_and_no_pef(pef, tmp_path, capsys, monkeypatch):
    given = pef.parent / "in.npz"
    kept = pef.read_bytes(), given.read_bytes()
    (tmp_path / "link").symlink_to(pef)
    os.link(given, tmp_path / "hard")
    monkeypatch.chdir(pef.parent)
    for path, part in {
        str(pef): "it is also the file of the PEF",
        "mlp.pef": "it is also the file of the PEF",
        str(tmp_path / "link"): "it is also the file of the PEF",
        str(given): "it is also the file of the inputs",
        str(tmp_path / "hard"): "it is also the file of the inputs",
    }.items():
        assert run(pef, "--output", path) == 1
        captured = capsys.readouterr()
        assert part in captured.err and captured.out == ""
    assert (pef.read_bytes(), given.read_bytes()) == kept


def test_where_nothing_can_be_written_is_told_before_the_run(pef, tmp_path, capsys, monkeypatch):
    def never(*_: Any) -> None:
        raise AssertionError("the program was loaded")

    monkeypatch.setattr("emulator.device.Device", never)
    os.mkfifo(tmp_path / "pipe")
    for path, part in {
        str(tmp_path): "a folder",
        str(tmp_path / "none" / "out.npz"): "its folder does not exist",
        str(tmp_path / "pipe"): "not a regular file",
        "/dev/null": "not a regular file",
        str(tmp_path / "a\0b"): "null",
        str(tmp_path / "\ud800"): "surrogates",
        str(tmp_path / ("n" * 10_000)): "too long",
        str(pef / "out.npz"): "its folder does not exist",
    }.items():
        assert run(pef, "--output", path) == 1
        error = capsys.readouterr().err
        assert "--output" in error and part in error and len(error.splitlines()) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]


def test_outputs_are_replaced_as_a_whole(tmp_path, monkeypatch):
    file = tmp_path / "out.npz"
    write_arrays(str(file), {"y": X})
    kept = file.read_bytes()
    real = os.write
    written = []

    def full(descriptor: int, data: Any) -> int:
        if written:
            raise OSError(28, "No space left on device")
        written.append(real(descriptor, data[:10]))
        return written[0]

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(UnwritableOutput, match="No space left"):
        write_arrays(str(file), {"y": X + 1})
    monkeypatch.undo()
    assert file.read_bytes() == kept and [p.name for p in tmp_path.iterdir()] == ["out.npz"]


@pytest.mark.parametrize(
    "array",
    [X, X.T, np.float32(3).reshape(()), np.zeros((0, 4)), np.arange(5) > 2, np.ones((3, 1), "c8")],
)
def test_what_is_written_is_what_numpy_reads(tmp_path, array):
    file = tmp_path / "out"
    write_arrays(str(file), {"a b/c": array, "2": array})
    with np.load(file) as found:
        assert found.files == ["a b/c", "2"]
        assert np.array_equal(found["2"], array) and found["2"].dtype == array.dtype
    assert np.array_equal(read_arrays(str(file), lambda *_: None)["a b/c"], array)


def test_large_outputs_are_written_piece_by_piece(tmp_path, peak):
    """Memory for a part of an array, not for a copy of it."""
    array = np.ones(2**23, np.float32)
    tracemalloc.reset_peak()
    write_arrays(str(tmp_path / "out"), {"y": array})
    assert peak() - array.nbytes < 2**23
    assert (tmp_path / "out").stat().st_size > array.nbytes


def test_numbers_of_the_command_line(pef, capsys):
    for option, value in {
        "--iterations": "0",
        "--init-seed": "-1",
    }.items():
        assert run(pef, option, value) == 2
        assert f"{option} must be" in capsys.readouterr().err
    for option, value in {
        "--iterations": "1e400",
        "--init-seed": "9" * 5000,
        "--init-seed ": "nan",
    }.items():
        with pytest.raises(SystemExit) as info:
            run(pef, option.strip(), value)
        assert info.value.code == 2 and "invalid int value" in capsys.readouterr().err
