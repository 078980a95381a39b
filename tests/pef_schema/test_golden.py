"""Files of every released format version stay readable, and today's writer still makes them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from pef_schema import WRITER_VERSION, PefTooNew, decode, encode, envelope, read_info, read_pef
from pef_schema._generated.pef import ENUMS, SCHEMA
from pef_schema.optimizer_rules import OPTIMIZER_RULES, OptimizerKind
from pef_schema.tables import Field, Kind
from pef_schema.verify_buffer import read_tables
from tests.pef_schema.forge import later_metadata, metadata_of, seal
from tests.pef_schema.goldens import FOLDER, PROGRAMS, VERSIONS, golden_path
from tests.pef_schema.samples import inference, updated_by


@pytest.mark.parametrize("name", PROGRAMS)
def test_read_equal(name: str) -> None:
    path = golden_path(name)
    assert path.exists(), "run python -m tests.pef_schema.goldens"
    assert read_pef(path) == PROGRAMS[name]()
    version = VERSIONS.get(name, 1)
    assert (read_info(path).min_reader, read_info(path).writer) == (version, version)


def test_only_what_needs_a_version_is_written_in_it() -> None:
    assert {VERSIONS.get(name, 1) for name in PROGRAMS} == set(range(1, WRITER_VERSION + 1))


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_bytes_as_ever(name: str) -> None:
    golden = golden_path(name).read_bytes()
    assert encode(PROGRAMS[name]()) == golden
    assert encode(decode(golden)) == golden


@pytest.mark.parametrize("kind", OptimizerKind)
def test_every_kind_of_optimizer_is_written_and_read(kind: OptimizerKind, tmp_path: Path) -> None:
    """In the version that introduces it."""
    path = tmp_path / "net.pef"
    path.write_bytes(encode(updated_by(kind)))
    assert read_pef(path) == updated_by(kind)
    assert read_info(path).min_reader == OPTIMIZER_RULES[kind].since


def test_header_byte_for_byte() -> None:
    data = (FOLDER / "v1_training.pef").read_bytes()
    length = len(metadata_of(data))
    assert data[:8] == bytes([0x89, 0x50, 0x45, 0x46, 0x0D, 0x0A, 0x1A, 0x0A])
    assert struct.unpack_from("<HHHHIIQ", data, 8) == (1, 1, 64, 0, length, 4096, 4396)
    assert data[64 + 4 : 64 + 8] == b"SPEF"


def _named(table: str, row: Any) -> dict[str, Any]:
    """Return a row as flatc's JSON has it: fields by name, defaults left out."""
    found: dict[str, Any] = {}
    for field, value in zip(SCHEMA.tables[table].fields, row, strict=True):
        if field.kind is Kind.TABLES:
            value = [_named(field.table, inner) for inner in value]
        elif field.kind in (Kind.SCALARS, Kind.STRINGS):
            value = list(value)
        # Floats are always stored, everything else only if it is not the default.
        stored = value != field.default if field.kind is Kind.SCALAR else bool(value)
        if stored or field.code == "d":
            found[field.name] = _as_json(field, value)
    return found


def _as_json(field: Field, value: Any) -> Any:
    """Return an enum's number as its name, a bool as one."""
    enum = {
        "dtype": "DType",
        "role": "Role",
        "grad": "OutputGrad",
    }.get(field.name)
    if field.kind is Kind.SCALAR and field.code == "?":
        return bool(value)
    if enum and field.code == "B":
        return next(name for name, number in ENUMS[enum].items() if number == value)
    return value


@pytest.mark.parametrize("name", sorted(set(PROGRAMS) - set(VERSIONS)))  # made where flatc was
def test_flatc_reads_the_same(name: str) -> None:
    """The official compiler's reading of the golden metadata, kept as JSON, agrees with ours."""
    path = golden_path(name)
    theirs = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    kinds = {"optimizers": "OptimizerKind", "argins": "ArginKind", "steps": "SectionKind"}

    def number(item: Any, parent: str = "") -> Any:
        """Turn the enum names of fields called ``kind`` into numbers."""
        if isinstance(item, list):
            return [number(inner, parent) for inner in item]
        if isinstance(item, dict):
            return {
                key: ENUMS[kinds[parent]][inner] if key == "kind" else number(inner, key)
                for key, inner in item.items()
            }
        return item

    rows = read_tables(metadata_of(path.with_suffix(".pef").read_bytes()), SCHEMA)
    assert _named(SCHEMA.root, rows) == number(theirs)


def test_later_minor_version_is_read() -> None:
    """A field that this version does not know is passed over, if the file says that it may be."""
    data = seal(later_metadata(inference()), min_reader=1, writer=2)
    assert decode(data) == inference()


@pytest.mark.parametrize(
    ("version", "known", "new"), [(2, "custom", "moments"), (3, "moments", "complex")]
)
def test_an_older_reader_refuses_what_it_does_not_know(
    version: int, known: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An optimizer with a state that is a number, and complex numbers."""
    monkeypatch.setattr(envelope, "WRITER_VERSION", version)
    wanted = f"format version {version + 1} needs a reader of version {version + 1} or later, "
    with pytest.raises(PefTooNew, match=f"{wanted}this one has version {version}"):
        read_pef(golden_path(new))
    assert read_pef(golden_path(known)) == PROGRAMS[known]()
