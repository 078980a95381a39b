"""Good files of every format version ever released.

``python -m tests.pef_schema.goldens`` writes those of the current version that ``tests/golden``
lacks. Released ones are never written again: they must stay readable as they are. The ``.json``
beside a file is its metadata as flatc, the official FlatBuffers compiler, reads it; it needs flatc.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pef_schema import WRITER_VERSION, Program, encode
from pef_schema.optimizer_rules import OPTIMIZER_RULES
from tests.pef_schema.forge import metadata_of
from tests.pef_schema.samples import (
    complex_numbers,
    custom,
    inference,
    moments,
    small,
    training,
    updated_by,
)
from tests.processes import finished

FOLDER = Path(__file__).parent.parent / "golden"
SCHEMA = Path(__file__).parents[2] / "pef_schema" / "pef.fbs"
PROGRAMS: dict[str, Callable[[], Program]] = {
    "training": training,
    "small": small,
    "inference": inference,
    "custom": custom,
    "moments": moments,
    "complex": complex_numbers,
}
VERSIONS = {"custom": 2, "moments": 3, "complex": 4}
"""The first version that can say what a program says; 1 for all others."""
for _kind, _rule in OPTIMIZER_RULES.items():
    if _rule.since > 4:  # a version of its own: its file is made from its row
        PROGRAMS[_kind.name.lower()] = partial(updated_by, _kind)
        VERSIONS[_kind.name.lower()] = _rule.since


def golden_path(name: str) -> Path:
    """Where today's file of a program is: a program is written in the first version that fits."""
    return FOLDER / f"v{VERSIONS.get(name, 1)}_{name}.pef"


def json_by_flatc(metadata: bytes) -> str:
    """Return metadata as flatc prints them.

    Args:
        metadata: The FlatBuffer.

    Returns:
        JSON with defaults left out.
    """
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "metadata.bin"
        binary.write_bytes(metadata)
        command = ["flatc", "--json", "--strict-json", "--natural-utf8", "--raw-binary"]
        command += ["-o", folder, str(SCHEMA), "--", str(binary)]
        finished(command, check=True)
        return (Path(folder) / "metadata.json").read_text(encoding="utf-8")


def main() -> None:
    """Write the files that are missing."""
    FOLDER.mkdir(exist_ok=True)
    for name, make in PROGRAMS.items():
        path = golden_path(name)
        if not path.exists():
            path.write_bytes(encode(make()))
            print(f"written {path.name}")
        text = path.with_suffix(".json")
        if not text.exists() and shutil.which("flatc"):
            text.write_text(json_by_flatc(metadata_of(path.read_bytes())), encoding="utf-8")
            print(f"written {text.name}")
    schema = FOLDER / f"v{WRITER_VERSION}.fbs"
    if not schema.exists():
        schema.write_bytes(SCHEMA.read_bytes())
        print(f"written {schema.name}")


if __name__ == "__main__":
    main()
