"""Every section of every model says which modules and lines it belongs to, at every level."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from emulator.costs.description import describe
from pef_schema import read_pef
from pef_schema.module_paths import short_paths
from samba.inspection.inspect_command import run
from samba.reporting.page import page
from tests.samba.exporting.models import MODELS

LEVELS = ("o0", "o1", "o3")
QUICK = {*zip(MODELS, LEVELS, strict=True)}
EVERY = [
    pytest.param(*way, marks=() if way in QUICK else pytest.mark.slow)
    for way in itertools.product(MODELS, LEVELS)
]


@pytest.mark.parametrize(("name", "level"), EVERY)
def test_each_section_has_modules_and_lines(
    name: str,
    level: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = MODELS[name]
    pef = model.compiled(tmp_path, inference=False, optim_level=level)
    capsys.readouterr()
    program = read_pef(pef)
    facts = describe(program)
    net = model.make()
    root = type(net).__name__.lower()
    paths = {"__".join(filter(None, (root, *at.split(".")))): m for at, m in net.named_modules()}
    weighted = {path for path, m in paths.items() if list(m.parameters(recurse=False))}
    # GPT reads the weight of its positions where it is; who is not called computes nothing.
    ran: set[str] = set()
    for path, module in paths.items():
        module.register_forward_hook(lambda *_, path=path: ran.add(path))
    net(**model.inputs)
    seen: dict[str, set[str]] = {"FWD": set(), "BCKWD": set(), "OPT": set()}
    for section in facts["sections"]:
        assert section["modules"], section["name"]
        assert set(section["modules"]) <= set(paths), section["name"]
        assert section["lines"], section["name"]
        for kind in section["types"]:
            seen[kind] |= set(section["modules"])
    assert weighted & ran <= seen["FWD"] & seen["BCKWD"] and weighted <= seen["OPT"]
    # The listing has them in each row, and the report leads from each to its line.
    monkeypatch.setenv("COLUMNS", "4000")
    assert run([pef, "--sections"]) == 0
    rows = {
        line.split()[2]: line for line in capsys.readouterr().out.splitlines()[2:] if "  " in line
    }
    html = page(program, facts)
    for section in facts["sections"]:
        named, _, operations = rows[section["name"]].rpartition(": ")
        modules = short_paths(section["modules"], root=root, width=120)
        assert named.endswith(f"  {modules}"), section["name"]
        assert operations, section["name"]
        _, _, row = html.partition(f'id="section-{section["id"]}"')
        file, _, number = section["lines"][0].rpartition(":")
        link = f'<a class="line" href="{file}#L{number}"'
        assert link in row.partition("</div></td></tr>")[0], section["name"]
