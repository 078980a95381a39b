"""What ``inspect`` and ``memory`` do alike: without torch and jax, at any width, of any file."""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pef_schema import read_pef, write_pef
from samba.inspection import inspect_command, memory_command
from tests.emulator.test_terminal_text import FIELDS, PROGRAMS, Field, texts
from tests.pages import without_sizes
from tests.pef_schema.forge import encode_unchecked
from tests.processes import finished
from tests.samba.inspection.programs import two_graphs
from tests.terminal import NAME, TEXT, foreign

ROOT = Path(__file__).parents[3]
Printed = pytest.CaptureFixture[str]
Run = Callable[[Sequence[str]], int]
LISTS = ["--nodes", "--regions", "--sections", "--metadata"]
COMMANDS = {"inspect": inspect_command.run, "memory": memory_command.run}
FORMS = {"inspect": ([], ["--json"], LISTS), "memory": ([], ["--json"])}


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest) -> str:
    return request.param


WITHOUT = """
import json, sys
sys.orig_argv = ["python", "-m", "samba", "estimate"]
sys.argv = ["-m", "estimate"]
from samba.__main__ import main
for words in json.loads({lines!r}):
    print("--", *words)
    assert main(words) == 0, words
"""


def test_neither_torch_nor_jax_is_needed(lenet_pef: str, tmp_path: Path) -> None:
    """In a process in which importing them fails, all forms of the commands work."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfor name in ('torch', 'jax', 'jaxlib'):\n    sys.modules[name] = None\n"
    )
    (tmp_path / "chip.toml").write_text("float32_gflops = 100.0\nbandwidth_gb_s = 20.0\n")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    lines = [
        ["inspect", lenet_pef, "--json"],
        ["memory", lenet_pef],
        ["diff", lenet_pef, lenet_pef],
        ["estimate", lenet_pef, "--machine", str(tmp_path / "chip.toml")],
        ["export", lenet_pef, "--format", "dot"],
        ["export", lenet_pef, "--format", "json"],
        ["report", lenet_pef, "-o", str(tmp_path / "page.html")],
    ]
    code = WITHOUT.format(lines=json.dumps(lines))
    for options in (["-m", "samba", "inspect", lenet_pef, "--nodes"], ["-c", code]):
        done = finished([sys.executable, *options], cwd=ROOT, env=env)
        assert (done.returncode, done.stderr) == (0, "")
    printed = done.stdout.split("-- ")[1:]
    assert [text.split()[0] for text in printed] == [words[0] for words in lines]
    assert all(text.count("\n") > 1 for text in printed), done.stdout
    assert "peak: " in printed[1]
    blocked = [sys.executable, "-c", "import torch"]
    assert "ModuleNotFoundError" in finished(blocked, cwd=ROOT, env=env).stderr


def test_no_option_is_abbreviated(command: str, lenet_pef: str, capsys: Printed) -> None:
    with pytest.raises(SystemExit, match="2"):
        COMMANDS[command]([lenet_pef, "--grap", "lenet"])
    assert "unrecognized arguments: --grap lenet" in capsys.readouterr().err
    assert COMMANDS[command]([lenet_pef, "--graph", "lenet"]) == 0


def test_no_command_takes_abbreviations() -> None:
    """Parsers of commands of a parser are of its class."""
    seen = 0
    for path in (p for room in ("samba", "bench", "emulator") for p in (ROOT / room).rglob("*.py")):
        text = path.read_text()
        for call in ast.walk(ast.parse(text)) if "ArgumentParser(" in text else ():
            if not isinstance(call, ast.Call):
                continue
            if ast.unparse(call.func) in {"argparse.ArgumentParser", "ArgumentParser"}:
                settings = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
                assert settings.get("allow_abbrev") == "False", f"{path}:{call.lineno}"
                seen += 1
    assert seen >= 9
    for package, words in (("bench", ["run", "--sui", "x"]), ("emulator", ["verify", "--hel"])):
        with pytest.raises(SystemExit, match="2"):
            importlib.import_module(f"{package}.__main__").main(words)


@pytest.mark.parametrize("columns", [20, 40, 80, 160])
def test_every_line_keeps_to_the_terminal(
    command: str, columns: int, lenet_pef: str, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for more in FORMS[command]:
        if "--json" not in more:
            assert COMMANDS[command]([lenet_pef, *more]) == 0
            assert max(map(len, capsys.readouterr().out.splitlines())) <= columns


def test_bad_files_are_one_error(
    command: str, lenet_pef: str, tmp_path: Path, capsys: Printed
) -> None:
    data = Path(lenet_pef).read_bytes()
    (tmp_path / "cut.pef").write_bytes(data[:-9])
    (tmp_path / "flipped.pef").write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])
    (tmp_path / "empty.pef").write_bytes(b"")
    (tmp_path / "zip.pef").write_bytes(b"PK\x03\x04" + bytes(100))
    for name in ("cut.pef", "flipped.pef", "empty.pef", "zip.pef", "none.pef", ""):
        path = str(tmp_path / name)
        for more in ([], ["--json"], ["-o", str(tmp_path / "out.txt")]):
            assert COMMANDS[command]([path, *more]) == 3
            captured = capsys.readouterr()
            assert captured.out == ""
            assert captured.err.startswith(f"error: {path}") and captured.err.count("\n") == 1
    assert not (tmp_path / "out.txt").exists()


@pytest.mark.parametrize(
    ("run", "arguments", "said"),
    [
        (inspect_command.run, [], "the following arguments are required: pef"),
        (inspect_command.run, ["a.pef", "b.pef"], "unrecognized arguments: b.pef"),
        (inspect_command.run, ["--wide", "a.pef"], "unrecognized arguments: --wide"),
        (memory_command.run, [], "the following arguments are required: pef"),
        (memory_command.run, ["a.pef", "--wide"], "unrecognized arguments: --wide"),
        (memory_command.run, ["a.pef", "--alive", "-1"], "found -1, expected 0 or more"),
        (memory_command.run, ["a.pef", "--alive", "many"], "invalid int value: 'many'"),
    ],
)
def test_wrong_usage(run: Run, arguments: list[str], said: str, capsys: Printed) -> None:
    with pytest.raises(SystemExit) as caught:
        run(arguments)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_an_unknown_graph_is_one_error(command: str, tmp_path: Path, capsys: Printed) -> None:
    pef = str(tmp_path / "two.pef")
    write_pef(pef, two_graphs())
    assert COMMANDS[command]([pef, "--graph", "third"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"error: {pef}: it has no graph third. Its graphs are tiny, second.\n"


def test_the_output_goes_to_a_file(
    command: str, lenet_pef: str, tmp_path: Path, capsys: Printed
) -> None:
    run, out = COMMANDS[command], tmp_path / "out.json"
    assert run([lenet_pef, "--json"]) == 0
    printed = capsys.readouterr().out
    assert run([lenet_pef, "--json", "-o", str(out)]) == 0
    said = without_sizes(capsys.readouterr().out)
    assert said.startswith(command) and f" {out} created: N in T. Next: docs/" in said
    assert out.read_text() == printed
    for path, code, part in (
        (str(tmp_path / "none" / "x"), 1, "there is no folder"),
        (str(tmp_path), 1, "error: "),
        (lenet_pef, 2, "the output would replace the PEF"),
    ):
        assert run([lenet_pef, "-o", path]) == code
        assert part in capsys.readouterr().err
    assert read_pef(lenet_pef).name == "lenet"


@pytest.mark.parametrize("field", FIELDS, ids=".".join)
def test_no_text_of_a_file_steers_the_terminal(
    command: str, field: Field, tmp_path: Path, capsys: Printed
) -> None:
    for name, program in PROGRAMS.items():
        for text in (NAME, TEXT):
            forged = texts(program, lambda f, t, text=text: t + text if f == field else t)
            path = tmp_path / f"{name}.pef"
            path.write_bytes(encode_unchecked(forged))
            for more in FORMS[command]:
                code = COMMANDS[command]([str(path), *more])
                captured = capsys.readouterr()
                assert not foreign(captured.out + captured.err)
                assert code in (0, 3)
