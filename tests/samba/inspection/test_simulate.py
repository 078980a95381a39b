"""``python -m samba simulate``: figures, the picture, and what cannot be simulated."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pef_schema import write_pef
from samba.__main__ import main
from samba.inspection.simulate_command import _parser
from tests.processes import finished
from tests.samba.compiler.test_buckets import Net, adamw, compiled

ROOT = Path(__file__).parents[3]
_ALONE = (
    "import sys; sys.argv = ['-m', *sys.argv[1:]]; sys.orig_argv = ['python', '-m', 'samba', "
    "*sys.argv[1:]]; sys.modules['torch'] = sys.modules['jax'] = None; "
    "from samba.__main__ import main; sys.exit(main())"
)
LINK = ("--latency", "20us", "--bandwidth", "1GB/s")


@pytest.fixture(scope="module")
def pef(tmp_path_factory):
    model = Net(3, classes=16)
    program = compiled(model, adamw(model), bucket_bytes=16 * 17 * 4)
    folder = tmp_path_factory.mktemp("pef")
    path, times = folder / "net.pef", folder / "times.json"
    write_pef(path, program)
    times.write_text(json.dumps([{"name": s.name, "median_ms": 1.0} for s in program.sections]))
    return str(path), str(times)


def run(capsys, *arguments):
    """Exit code, output and errors."""
    try:
        code = main(["simulate", *map(str, arguments)])
    except SystemExit as error:
        code = error.code
    return (code, *capsys.readouterr())


def test_json_by_hand(capsys, pef):
    path, times = pef
    code, out, err = run(capsys, path, "--times", times, *LINK, "--replicas", "64,8", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["between_hosts"] == {"latency_seconds": 20e-6, "bytes_per_second": 1e9}
    sizes = [bucket["bytes"] for bucket in found["buckets"]]
    assert len(sizes) == 4
    assert [(s["replicas"], s["mode"]) for s in found["steps"]] == [
        (n, mode) for mode in ("normal", "inorder", "optimal") for n in (8, 64)
    ]
    for step in found["steps"]:
        n = step["replicas"]
        reduce = sum(2 * (n - 1) * (20e-6 + size / (n * 1e9)) for size in sizes)
        assert step["reduce_seconds"] == pytest.approx(reduce)
        assert step["efficiency"] == pytest.approx(step["compute_seconds"] / step["seconds"])
        if step["mode"] == "normal":
            assert step["seconds"] == pytest.approx(step["compute_seconds"] + reduce)


@pytest.mark.parametrize("columns", ["40", "80", "240"])
def test_the_table(capsys, pef, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    path, times = pef
    code, out, err = run(capsys, path, "--times", times, *LINK, "--mode", "normal")
    assert (code, err) == (0, "")
    assert "4 buckets" in out and "4,096" in out and "100.0%" in out and "inorder" not in out
    assert all(len(line) <= int(columns) for line in out.splitlines())


def test_without_torch_and_jax(pef):
    path, times = pef
    done = finished([sys.executable, "-c", _ALONE, "simulate", path, "--times", times, *LINK])
    assert done.returncode == 0, done.stderr
    assert "efficiency" in done.stdout


def test_a_machine_in_the_place_of_times(capsys, pef, tmp_path):
    machine = tmp_path / "chip.toml"
    machine.write_text("float32_gflops = 100.0\nbandwidth_gb_s = 20.0\n")
    code, out, err = run(capsys, pef[0], "--machine", machine, *LINK, "--json")
    assert (code, err) == (0, "")
    assert all(step["compute_seconds"] > 0 for step in json.loads(out)["steps"])


def test_hosts(capsys, pef):
    path, times = pef
    hosts = ("--per-host", "8", "--inside-latency", "1us", "--inside-bandwidth", "50GB/s")
    seconds = {}
    for topology in ("ring", "hierarchical"):
        asked = (path, "--times", times, *LINK, *hosts, "--topology", topology, "--json")
        code, out, _ = run(capsys, *asked, "--replicas", "512", "--mode", "normal")
        assert code == 0
        found = json.loads(out)
        assert (found["replicas_per_host"], found["topology"]) == (8, topology)
        seconds[topology] = found["steps"][0]["seconds"]
    assert seconds["hierarchical"] < seconds["ring"]


def test_the_picture(capsys, pef, tmp_path):
    path, times = pef
    picture = tmp_path / "curve.svg"
    code, _, err = run(capsys, path, "--times", times, *LINK, "--picture", picture)
    assert (code, err) == (0, "")
    root = ET.fromstring(picture.read_text())
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{space}polyline")) == 3
    assert len(root.findall(f"{space}circle")) == 15
    assert "4,096" in [t.text for t in root.findall(f"{space}text")]
    code, _, err = run(capsys, path, "--times", times, *LINK, "--picture", path)
    assert code == 2 and "would replace the PEF" in err


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--latency", "20"), "argument --latency: found '20', wanted a time with its unit"),
        (("--latency", "nans"), "argument --latency: found 'nans'"),
        (("--bandwidth", "0GB/s"), "argument --bandwidth: found '0GB/s', wanted a bandwidth"),
        (("--bandwidth", "5 GB"), "argument --bandwidth: found '5 GB'"),
        (("--replicas", "8,0"), "argument --replicas: found '0', wanted counts"),
        (("--replicas", "8;9"), "argument --replicas: found '8;9'"),
        (("--per-host", "0"), "--per-host: found 0, wanted 1 or more"),
        (("--per-host", "4"), "Give --inside-latency and --inside-bandwidth"),
        (("--inside-latency", "1us"), "give --per-host 2 or more"),
        (("--graph", "other"), "it has no graph other"),
    ],
)
def test_wrong_usage(capsys, pef, wrong, said):
    path, times = pef
    code, out, err = run(capsys, path, "--times", times, *LINK, *wrong)
    assert (code, out) == (2, "") and said in err


def test_what_cannot_be_simulated(capsys, pef, tmp_path):
    path, _ = pef
    golden = ROOT / "tests/golden/v1_training.pef"
    machine = tmp_path / "chip.toml"
    machine.write_text("float32_gflops = 100.0\nbandwidth_gb_s = 20.0\n")
    code, _, err = run(capsys, golden, "--machine", machine, *LINK)
    assert code == 1 and "Compile it with --data-parallel" in err
    code, _, err = run(capsys, path, "--times", tmp_path / "none.json", *LINK)
    assert code == 3 and "it cannot be read" in err
    part = tmp_path / "part.json"
    part.write_text(json.dumps([{"name": "fwd_0", "median_ms": 1.0}]))
    code, _, err = run(capsys, path, "--times", part, *LINK)
    assert code == 1 and "section times: found none of " in err
    code, _, err = run(capsys, tmp_path / "none.pef", "--machine", machine, *LINK)
    assert code == 3 and err.startswith("error: ")
    code, _, err = run(capsys, path, *LINK)
    assert code == 2 and "--times" in err and "--machine" in err


def test_every_option_and_key_is_on_the_page(capsys, pef):
    page = (ROOT / "docs/scaling.md").read_text()
    options = {o for action in _parser()._actions for o in action.option_strings}
    assert {o for o in options if o.startswith("--")} - {"--help"} <= set(
        re.findall(r"`(--[a-z-]+)", page)
    )
    path, times = pef
    found = json.loads(run(capsys, path, "--times", times, *LINK, "--json")[1])
    keys = {*found, *found["between_hosts"], *found["buckets"][0], *found["steps"][0]}
    assert keys <= set(re.findall(r"`(\w+)`", page))
