"""Pages name files that exist, in backticks and links, and the names in a link's text are there."""

from __future__ import annotations

import ast
import os
import pkgutil
import re
import shlex
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.pages import examples_of, page, without_sizes
from tests.samba.distributed.processes import clean_environment
from tests.warm import finished, for_children
from tools.write_tables import TABLES, with_table

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
ROOMS = (
    "samba",
    "emulator",
    "pef_schema",
    "sambaflow",
    "bench",
    "tests",
    "tools",
    "docs",
    "examples",
)

PATH = re.compile(rf"`((?:{'|'.join(ROOMS)})/[\w./-]*)`")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[\w-]+)?\)")
NAMED = re.compile(r"\[`([\w.]+)`\]\(([^)#\s]+\.py)\)")
"""A link whose text is a name in a Python file."""


FILE = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|pyi|cc|h|fbs|md|toml|yml))`")
"""A source, by its path from any folder on; others are those that a run writes."""
FOREIGN = re.compile(r"^\| (?:`[\w-]+/[\w-]+`|the same)[:,].*", re.MULTILINE)
"""A row about a script of somebody else's repository."""
SAVED = re.compile(r"\bpython ([\w-]+\.py)")
"""A script that the reader has saved."""


@cache
def files() -> list[str]:
    """Files of the repository, each with a slash before its path."""
    found = [*ROOT.glob("*.*"), *(path for room in ROOMS for path in (ROOT / room).rglob("*.*"))]
    return [f"/{path.relative_to(ROOT).as_posix()}" for path in found]


def is_one_file(name: str) -> bool:
    """Whether there is a file of a path's last parts, and no other one beside tests.

    A bare name is that of a file beside another, which may be in several folders.
    """
    found = [file for file in files() if file.endswith(f"/{name}")]
    sources = [file for file in found if not file.startswith("/tests/")] or found
    return len(sources) == 1 or ("/" not in name and bool(found))


def missing(page: Path, text: str) -> list[str]:
    """Files, folders and links of a page that lead nowhere, or to one of several files."""
    paths = [(ROOT, path) for path in PATH.findall(text)]
    links = [(page.parent, link) for link in LINK.findall(text) if "://" not in link]
    own = {*PATH.findall(text), *SAVED.findall(text)}
    return [name for folder, name in paths + links if not (folder / name).exists()] + [
        name
        for name in FILE.findall(FOREIGN.sub("", text))
        if name not in own and not is_one_file(name)
    ]


@cache
def defined(path: Path) -> set[str]:
    """Names that a file defines: its functions, classes and variables, methods with their class."""
    found: set[str] = set()

    def look(body: list[ast.stmt], before: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(before + node.name)
            if isinstance(node, ast.ClassDef):
                look(node.body, f"{before}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.update(before + t.id for t in targets if isinstance(t, ast.Name))

    look(ast.parse(path.read_text()).body, "")
    return found


def undefined(page: Path, text: str) -> list[str]:
    """Links of a page whose text names what the file does not define."""
    return [
        f"{name} in {link}"
        for name, link in NAMED.findall(text)
        if "://" not in link and not name.endswith(".py")
        if name not in defined(page.parent / link)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_a_page_names_exists(page):
    assert missing(page, page.read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_a_page_names_in_a_file_is_defined_there(page):
    assert undefined(page, page.read_text()) == []


def test_a_name_that_leads_nowhere_is_found():
    text = "`samba/nowhere.py` and [a page](docs/none.md#there), [this](docs/architecture.md)"
    assert missing(ROOT / "README.md", text) == ["samba/nowhere.py", "docs/none.md"]
    text = "`nowhere.py`, `plans/nowhere.py`, `ops/__init__.py`, `made/x.json` and `net.py`"
    text += "\n| `sambanova/tutorials`: `lenet.py` | and `setup.py`, `plans/plan.py`, `running.py`"
    assert missing(ROOT / "README.md", text) == [
        *("nowhere.py", "plans/nowhere.py", "ops/__init__.py", "net.py"),
    ]
    assert missing(ROOT / "README.md", text.replace("and `net", "`python net.py`, `net"))[3:] == []


def test_a_name_that_its_file_does_not_define_is_found():
    text = (
        "[`Device.run`](emulator/device.py), [`write_pef`](emulator/device.py), "
        "[`Device.fly`](emulator/device.py) and [`device.py`](emulator/device.py)"
    )
    assert undefined(ROOT / "README.md", text) == [
        "write_pef in emulator/device.py",
        "Device.fly in emulator/device.py",
    ]


CODE = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")) if room != "tests"]
DOC = re.compile(r"\bdocs/[\w/.-]+\.md\b")


def test_pages_that_code_names_exist():
    """Messages and docstrings send a reader to pages that are there."""
    named = {(path, name) for path in CODE for name in DOC.findall(path.read_text())}
    assert len(named) > 20
    assert sorted(str(path) for path, name in named if not (ROOT / name).exists()) == []


REFERENCE = re.compile(r":\w+:`~?((?:samba|emulator|pef_schema|bench|tools|tests)\.[\w.]+)`")


def test_what_docstrings_refer_to_exists():
    names = {name for path in CODE for name in REFERENCE.findall(path.read_text())}
    assert len(names) > 40
    assert sorted(name for name in names if not leads_somewhere(name)) == []
    assert not leads_somewhere("emulator.kernels.rules") and not leads_somewhere("samba.none.run")


def leads_somewhere(name: str) -> bool:
    """Whether a dotted name is that of a module, or of something that a module has."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize(
    ("name", "row"),
    [("architecture.md", "| `emulator/ops/` |"), ("optimizers.md", "| `RMSprop` |")],
)
def test_tables_that_the_code_decides_are_those_of_now(name, row):
    """``python tools/write_tables.py`` writes them again."""
    text = (ROOT / "docs" / name).read_text()
    assert row in text and TABLES[name][1]() in text
    assert with_table(name, text) == text
    assert with_table(name, text.replace(row, row.replace("| `", "| `not_"))) == text


BUILD = [sys.executable, "-m", "mkdocs", "build", "--strict"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built."""
    folder = tmp_path_factory.mktemp("site")
    done = finished([*BUILD, "--site-dir", str(folder)], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_every_page_is_there(site: Path) -> None:
    pages = {p.relative_to(ROOT / "docs").with_suffix("") for p in (ROOT / "docs").rglob("*.md")}
    pages = {p.parent / "index" if p.name == "README" else p for p in pages}
    built = {p.relative_to(site).with_suffix("") for p in site.rglob("*.html")}
    assert pages <= built


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        found = re.findall(
            r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]*)"', path.read_text()
        )
        assert not found, f"{path}: {found}"


@pytest.mark.slow
def test_the_reference_has_signatures_and_arguments(site: Path) -> None:
    text = (site / "reference" / "session.html").read_text()
    for word in ("run", "output_tensors", "hyperparam_dict", "to_cpu", "Returns", "Raises"):
        assert word in text


@pytest.mark.slow
def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    """The check bites: a page with each kind of bad link."""
    docs = tmp_path / "docs"
    docs.mkdir()
    config = re.sub(r"(?ms)^nav:.*", "", (ROOT / "mkdocs.yml").read_text())
    config = re.sub(r"(?s)  - mkdocstrings:.*?(?=markdown_extensions)", "", config)
    config = config.replace("tools/site_hooks.py", str(ROOT / "tools" / "site_hooks.py"))
    (tmp_path / "mkdocs.yml").write_text(config)
    for text, bad in (
        ("[a](index.md)", False),
        ("[a](none.md)", True),
        ("[a](index.md#none)", True),
    ):
        (docs / "index.md").write_text(f"# Page\n\n{text}\n")
        done = finished([*BUILD, "--site-dir", str(tmp_path / "out")], cwd=tmp_path)
        assert bool(done.returncode) == bad, done.stdout + done.stderr


PAGE = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
_LOSS = re.compile(r"loss \d\.\d{3}, \d+\.\d%")


def masked(text: str) -> str:
    """Without numbers that depend on the processor in their last digits."""
    return _LOSS.sub("loss L, R%", text)


def printed(command: str, folder: Path) -> str:
    """What a command of a page prints in a folder, ``python`` and its arguments."""
    words = [sys.executable, *shlex.split(command)[1:]]
    done = finished(words, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_script_of_the_page(tmp_path: Path) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "digits.py").write_text(script)
    shown: list[str] = []
    for command, output in examples_of(PAGE):
        assert command.startswith("python digits.py")
        found = printed(command, tmp_path)
        if output:
            assert masked(found) == masked(output), command
            shown += _LOSS.findall(found)
    assert len(shown) == 5, "three epochs, and two more after the checkpoint"
    rights = [float(line.rpartition(" ")[2].rstrip("%")) for line in shown]
    assert min(rights) > 75
    assert rights[-1] > 85


@pytest.mark.slow
def test_the_scripts_of_the_page_on_following(tmp_path: Path) -> None:
    """The tutorial's script as it stands, with an option more, and one that reads the lines."""
    text = page("follow.md")
    (tutorials,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "digits.py").write_text(tutorials)
    (reader,) = re.findall(r"```python\n(import .*?)```", text, re.DOTALL)
    (tmp_path / "curve.py").write_text(reader)
    numbers = re.compile(r"loss \d\.\d{3}|\d+\.\d% right")
    for command, output in examples_of(text):
        found = printed(command, tmp_path)
        if output:
            assert numbers.sub("N", found) == numbers.sub("N", output), command
    events = [path.name for path in (tmp_path / "log").iterdir()]
    assert sorted(name.partition(".out")[0] for name in events) == ["events", "steps.jsonl"]


FROM_PYTORCH = page("from_pytorch.md")


def test_the_scripts_of_the_page_on_pytorch_print_the_same(tmp_path: Path) -> None:
    """Both scripts run as they stand there, and both print what is shown."""
    parts = re.findall(r'```python title="([^"]*)"\n(.*?)```', FROM_PYTORCH, re.DOTALL)
    for name in ("torch_net.py", "net.py"):
        script = "\n\n".join(part for title, part in parts if title == name)
        (tmp_path / name).write_text(script)
    shown = examples_of(FROM_PYTORCH)
    for command, output in shown:
        found = printed(command, tmp_path).replace(f"{tmp_path}/", "")
        assert without_sizes(found) == without_sizes(output), command
    (_, torchs), _, (_, ours) = shown
    assert torchs == ours and torchs.count("step ") == 4


@pytest.mark.slow
def test_the_site_has_search_and_a_switch_of_its_scheme(site: Path) -> None:
    text = (site / "index.html").read_text()
    assert 'class="md-search__input"' in text
    assert (site / "search" / "search_index.json").stat().st_size > 100_000
    assert text.count('name="__palette"') == 3


ELASTIC = page("data_parallel.md", "Replicas that come and go")


@pytest.mark.slow
def test_the_script_of_replicas_that_come_and_go(tmp_path: Path) -> None:
    script = re.findall(r"```python\n(.*?)```", ELASTIC, re.DOTALL)[0]
    (tmp_path / "train.py").write_text(script)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=3"]
    run = ["train.py", "run", "--data-parallel", "--pef=out/train/train.pef"]
    said = []
    for command in (
        [sys.executable, "train.py", "compile", "--data-parallel", "--pef-name=train"],
        [*torchrun, "--nproc-per-node=2", *run, "--epochs=2"],
        [*torchrun, "--nproc-per-node=1", *run, "--epochs=3"],
    ):
        env = clean_environment(CCL_TIMEOUT="60", **for_children())
        done = finished(command, cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        said += re.findall(r"epoch .* replicas", done.stdout)
    assert said == [
        "epoch 0 from sample 0 with 2 replicas",
        "epoch 1 from sample 0 with 2 replicas",
        "epoch 2 from sample 0 with 1 replicas",
    ]
