"""Reading costs little time and memory, whatever is in the file; each is read in a subprocess."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pef_schema import PefLimit, decode, encode, read, read_info, read_pef
from pef_schema._generated.pef import SCHEMA
from pef_schema.envelope import MIN_READER, data_offset, make_header
from pef_schema.limits import LIMITS
from pef_schema.write import write_tables
from tests.pef_schema.forge import metadata_of, rows_of, seal
from tests.pef_schema.heavy import HEAVY
from tests.pef_schema.samples import constant, inference, training
from tests.processes import finished

_ROOT = Path(__file__).parents[2]
_SECONDS = 5.0
"""CPU time that one file may take here: about five times what it takes on a quiet machine."""
_MIB = 2**20

_TWINS = "PefLimit: checking sections and their twins takes"
_FAST: dict[str, tuple[int, str]] = {
    "twins_share_node": (1500, "PefInvalid: 1000 problems:\n  section 1 (s0001) FWD: nodes [0]"),
    "twins_share_arguments": (650, _TWINS),
    "twins_share_outputs": (2500, _TWINS),
    "twins_share_params": (650, _TWINS),
    "steps_share_outputs": (2500, "PefLimit: checking what steps write takes"),
    "steps_share_updates": (10_000, "read"),
    "order_of_calls": (8000, "PefLimit: checking the order of calls takes"),
    "calls": (20_000, "read"),
    "schedules": (5000, "read"),
    "optimizers": (2000, "read"),
    "differentiated": (9000, "read"),
    "sized_nodes": (9000, "read"),
    "custom_gradient": (50_000, "read"),
    "steps_of_a_twin": (12_000, "PefInvalid: "),
    "overlapping_vectors": (100_000, "PefLimit: "),
    "overlapping_strings": (200_000, "PefLimit: "),
    "long_shapes": (50_000, "PefInvalid: 2 problems"),
    "long_names": (_MIB, "PefInvalid: "),
    "shared_names": (100_000, "read"),
    "vtables": (6000, "PefLimit: 4097 vtables"),
    "long_vtables": (4000, "PefLimit: "),
    "shared_vectors": (600_000, "PefLimit: "),
    "everything": (9000, "read"),
}

_IN_MEMORY = "overlapping_vectors"
"""A small file that is read from memory as well."""

_SLOW: dict[str, tuple[int, str]] = {
    "regions_alone": (159_000, "read"),
    "values": (149_000, "read"),
    "nodes_alone": (143_000, "read"),
    "tokens": (900_000, "read"),
    "floats": (900_000, "read"),
    "sizes": (450_000, "read"),
    "sized_nodes": (64_000, "read"),
    "texts": (700_000, "read"),
    "keywords": (400_000, "read"),
    "differentiated": (158_000, "read"),
    "custom_gradient": (320_000, "read"),
    "sections_alone": (49_000, "read"),
    "calls": (59_000, "read"),
    "schedules": (31_000, "read"),
    "optimizers": (14_400, "read"),
    "twins_share_arguments": (480, "read"),
    "twins_share_outputs": (850, "read"),
    "twins_share_params": (375, "read"),
    "steps_share_outputs": (1220, "read"),
    "steps_of_a_twin": (52_000, "PefInvalid: "),
    "shared_vectors": (370_000, "read"),
    "long_vectors": (4900, "PefInvalid: "),
    "long_shapes": (330_000, "PefInvalid: "),
    "overlapping_vectors": (15 * _MIB, "PefLimit: "),
    "overlapping_strings": (60 * _MIB, "PefLimit: "),
    "text_of_four_bytes": (60 * _MIB, ""),
    "plain_text": (63 * _MIB, "read"),
    "long_names": (60 * _MIB, "PefLimit: "),
    "vtables": (1_000_000, "PefLimit: "),
    "segments": (79_000, "read"),
    "everything": (159_000, "read"),
}


def _costs(folder: Path, sizes: dict[str, int], cases: Sequence[tuple[str, str]]) -> dict[Any, Any]:
    """Read files in one process and return what came of each, with its seconds.

    Args:
        folder: Where files go.
        sizes: How large the part is of each file that is made.
        cases: What is read: name of a file, and ``path`` or ``bytes``.
    """
    arguments: list[str] = []
    for name, size in sizes.items():
        (folder / name).write_bytes(HEAVY[name](size))
        assert (folder / name).stat().st_size < 64 * _MIB + 4096
    for name, how in cases:
        arguments += [str(folder / name), how]
    done = finished(
        [sys.executable, "-m", "tests.pef_schema.cost_driver", *arguments],
        cwd=_ROOT,
        seconds=60 + 30 * len(cases),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line)[1:] for line in done.stdout.splitlines()]
    return dict(zip(cases, found, strict=True))


def _check(found: Sequence[Any], wanted: str) -> None:
    outcome, seconds = found
    assert outcome.startswith(wanted), outcome
    assert "not enough memory" not in outcome, outcome
    assert not outcome.startswith("foreign"), outcome
    assert seconds < _SECONDS, outcome


@pytest.fixture(scope="module")
def small_files(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    """What came of all small files, read one after the other, and of one that is not a file."""
    sizes = {name: size for name, (size, _) in _FAST.items()}
    cases = [*((name, "path") for name in _FAST), (_IN_MEMORY, "bytes")]
    return _costs(tmp_path_factory.mktemp("heavy"), sizes, cases)


@pytest.mark.parametrize("name", _FAST)
def test_small_files(name: str, small_files: dict[Any, Any]) -> None:
    """Files of some hundred kilobytes, of which some took minutes and others gigabytes."""
    _check(small_files[name, "path"], _FAST[name][1])


def test_bytes_in_memory(small_files: dict[Any, Any]) -> None:
    _check(small_files[_IN_MEMORY, "bytes"], _FAST[_IN_MEMORY][1])


@pytest.mark.slow
@pytest.mark.parametrize("name", _SLOW)
def test_large_files(name: str, tmp_path: Path) -> None:
    """Every kind of content, as much of it as the budgets or 64 MiB allow."""
    size, wanted = _SLOW[name]
    for found in _costs(tmp_path, {name: size}, [(name, "path"), (name, "bytes")]).values():
        _check(found, wanted)


def _sparse(path: Path, size: int, digest: bytes) -> None:
    """Write a PEF with a constant of zeros that takes up no disk."""
    rows = rows_of(constant(size))
    rows[10] = [(0, size, digest)]
    metadata = write_tables(SCHEMA, rows)
    head = make_header(metadata, size, min_reader=MIN_READER, writer=MIN_READER)
    with path.open("wb") as file:
        file.write(head + metadata)
        file.truncate(data_offset(len(metadata), size) + size)


_LIMITED = """
import os, sys
from tests.pef_schema.cost_driver import allow
from pef_schema import PefError, read_pef

path, more, most = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
real = os.pread
os.pread = lambda descriptor, count, start: real(descriptor, min(count, most), start)
allow(more)
try:
    print(len(read_pef(path).segments[0]))
except PefError as error:
    print(type(error).__name__, error)
except BaseException as error:
    print("foreign", repr(error))
"""


def _limited(path: Path, more: int, most: int = 2**31) -> str:
    """Read a file with so many bytes of memory; one system call gives ``most`` bytes."""
    done = finished(
        [sys.executable, "-c", _LIMITED, str(path), str(more), str(most)],
        cwd=_ROOT,
        seconds=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def _zeros(size: int) -> bytes:
    state, chunk = hashlib.sha256(), bytes(_MIB)
    for _ in range(size // _MIB):
        state.update(chunk)
    return state.digest()


def test_a_constant_is_in_memory_once(tmp_path: Path) -> None:
    """Also where the system gives it in pieces, as it does beyond 2 GiB."""
    path, size = tmp_path / "net.pef", 128 * _MIB
    _sparse(path, size, _zeros(size))
    assert _limited(path, size + 64 * _MIB, most=8 * _MIB) == str(size)


@pytest.mark.slow
def test_a_constant_of_3_gib(tmp_path: Path) -> None:
    path, size = tmp_path / "net.pef", 3 * 2**30
    _sparse(path, size, _zeros(size))
    # A buffer that grows asks for an eighth more than it has; it is given back unused.
    assert _limited(path, size + size // 8 + 128 * _MIB) == str(size)


def test_a_sparse_file_of_64_gib(tmp_path: Path) -> None:
    """More than this host has, or than this process may have: said, with the path."""
    path = tmp_path / "net.pef"
    _sparse(path, 2**36, bytes(32))
    said = _limited(path, 2**30)
    assert said.startswith(f"PefLimit {path}: ")
    assert "memory" in said


def test_a_constant_that_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "net.pef"
    _sparse(path, 2**28, bytes(32))
    said = _limited(path, 2**26)
    assert said == (
        f"PefLimit {path}: there is not enough memory to read it. Free memory, or use another host."
    )


def test_memory_that_ends_anywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One boundary makes an error of this project of it, and holds on to nothing."""

    def exhausted(*args: object, **keywords: object) -> None:
        raise MemoryError

    path = tmp_path / "net.pef"
    path.write_bytes(encode(training()))
    data = path.read_bytes()
    for name in ("read_tables", "from_rows", "verify", "_read_segment"):
        monkeypatch.setattr(read, name, exhausted)
        for call in (lambda: read_pef(path), lambda: decode(data, path=str(path))):
            with pytest.raises(PefLimit, match="not enough memory") as caught:
                call()
            assert caught.value.path == str(path)
            assert caught.value.__context__ is None
        monkeypatch.undo()
    monkeypatch.setattr(read, "check_digest", exhausted)
    with pytest.raises(PefLimit, match="not enough memory"):
        read_info(path)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_it_was(enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        decode(encode(training()))
        assert gc.isenabled() is enabled
        with pytest.raises(PefLimit):
            decode(encode(training()), limits=dataclasses.replace(LIMITS, tables=2))
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.parametrize("name", ["tables", "items", "memory", "vtables", "expanded"])
def test_budgets_hold_for_writers_too(name: str) -> None:
    """What no reader takes is not written; the smallest budget that suffices is the same."""
    program, low, high = inference(), 0, 2**28
    data = encode(program)
    while low < high:
        middle = (low + high) // 2
        try:
            decode(data, limits=dataclasses.replace(LIMITS, **{name: middle}))
            high = middle
        except PefLimit:
            low = middle + 1
    assert encode(program, limits=dataclasses.replace(LIMITS, **{name: low})) == data
    if low:
        with pytest.raises(PefLimit, match="at most"):
            encode(program, limits=dataclasses.replace(LIMITS, **{name: low - 1}))


def test_heavy_files_are_well_formed() -> None:
    """What makes them heavy is all that they are refused for: small ones are read."""
    small = "regions_alone values nodes_alone tokens floats sizes sized_nodes texts keywords"
    small += " differentiated custom_gradient sections_alone calls schedules optimizers segments"
    small += " twins_share_arguments twins_share_outputs twins_share_params steps_share_outputs"
    small += " steps_share_updates shared_names"
    for name, size in (
        *((name, 9) for name in (*small.split(), "vtables")),
        *(("shared_vectors", 900), ("overlapping_strings", 60_000), ("everything", 900)),
        *(("plain_text", 900), ("text_of_four_bytes", 900)),
    ):
        program = decode(HEAVY[name](size))
        assert decode(encode(program)) == program, name


def test_sealed_files_are_those_of_the_writer() -> None:
    data = encode(inference())
    assert seal(metadata_of(data)) == data
