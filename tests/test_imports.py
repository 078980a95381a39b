"""Importing a package does nothing but import it; test_import_rules.py has who may import whom."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.processes import finished

ROOT = Path(__file__).parents[1]


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def in_fresh_process(code: str, server: Any = None) -> Any:
    """Run code in a new interpreter and return the JSON object it prints.

    With a server the process is forked after the import of the libraries that it has.
    """
    command = [sys.executable, "-c", code]
    done = warm.finished(command, server=server) if server else finished(command, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def modules_of(folder: str) -> list[str]:
    """Dotted names of all modules in a folder, ``__main__`` excepted."""
    names = []
    for path in sources(folder):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] == "__main__":
            continue
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


COMMANDS = {
    "samba": [([], 2), (["--help"], 0), (["launch", "-h"], 0), (["compare", "-h"], 0), (["no"], 2)],
    "bench": [(["--help"], 0), (["run", "--help"], 0), (["gate", "-h"], 0), ([], 2), (["none"], 2)],
}
"""Arguments and exit codes of commands that say how they are called."""


@pytest.fixture(scope="module")
def said() -> list[list[Any]]:
    """Package and arguments of each command, its exit code, and what its process had loaded.

    Each is forked from a process that has numpy and flatbuffers, and runs as ``python -m`` does.
    """
    code = f"""
import atexit, flatbuffers, json, numpy, os, runpy, sys
ends = []
for package, commands in {COMMANDS!r}.items():
    for arguments, _ in commands:
        reading, writing = os.pipe()
        if not os.fork():
            os.dup2(2, 1)
            tell = lambda to=writing: os.write(to, json.dumps(list(sys.modules)).encode())
            atexit.register(tell)
            sys.orig_argv[1:], sys.argv = ["-m", package, *arguments], ["-m", *arguments]
            runpy._run_module_as_main(package)
            sys.exit(0)
        os.close(writing)
        with os.fdopen(reading) as told:
            loaded = json.load(told)
        ends.append([package, arguments, os.waitstatus_to_exitcode(os.wait()[1]), loaded])
print(json.dumps(ends))
"""
    return in_fresh_process(code)


@pytest.mark.parametrize(
    ("package", "arguments", "code"),
    [(package, *command) for package, commands in COMMANDS.items() for command in commands],
)
def test_help_loads_neither_torch_nor_jax(package, arguments, code, said):
    ((found, loaded),) = [one[2:] for one in said if one[:2] == [package, arguments]]
    assert found == code
    assert "pef_schema.printable" in loaded
    assert not {*loaded} & {"torch", "jax"}


SNAPSHOT = """
import atexit, importlib, json, logging, os, signal, sys, threading, warnings

def snapshot():
    state = {
        "environment": sorted(os.environ.items()),
        "working folder": os.getcwd(),
        "excepthook": repr(sys.excepthook),
        "displayhook": repr(sys.displayhook),
        "path": list(sys.path),
        "trace": [repr(sys.gettrace()), repr(sys.getprofile())],
        "exit handlers": atexit._ncallbacks(),
        "signals": [repr(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM)],
        "threads": sorted(t.name for t in threading.enumerate()),
        "logging": [repr(logging.getLogger().handlers), logging.getLogger().level],
        "warnings": repr(warnings.filters),
        "recursion limit": sys.getrecursionlimit(),
    }
    if "torch" in sys.modules:
        import torch
        state["torch"] = [
            repr(torch.get_default_dtype()), repr(torch.get_default_device()),
            torch.get_num_threads(), torch.is_grad_enabled(), torch.initial_seed(),
            torch.are_deterministic_algorithms_enabled(), torch._C._len_torch_function_stack(),
            torch.get_float32_matmul_precision(), torch.Tensor.add.__qualname__,
        ]
    if "jax" in sys.modules:
        import jax
        from jax._src import xla_bridge
        state["jax"] = [repr(sorted(jax.config.values.items())), sorted(xla_bridge._backends)]
    return state
"""


def changes(before: list[str], modules: list[str], unloaded: str = "", server: Any = None) -> dict:
    """Import ``before``, then ``modules``, which load no ``unloaded``; say what they changed."""
    code = f"""{SNAPSHOT}
for name in {before!r}:
    importlib.import_module(name)
assert not {{name.partition(".")[0] for name in {modules!r}}} & sys.modules.keys()
first = snapshot()
for name in {modules!r}:
    importlib.import_module(name)
last = snapshot()
assert {unloaded!r} not in sys.modules
print(json.dumps({{k: [v, last[k]] for k, v in first.items() if last[k] != v}}))
"""
    return in_fresh_process(code, server)


@pytest.mark.parametrize(
    ("packages", "needs", "unloaded", "server"),
    [
        (["pef_schema"], ["numpy", "flatbuffers"], "torch", None),
        (["emulator"], ["jax"], "torch", warm.JAX),
        (["samba", "sambaflow.samba"], ["torch"], "jax", warm.TORCH),
        (["sambaflow", "bench"], [], "torch", None),
    ],
    ids=["pef_schema", "emulator", "samba", "sambaflow"],
)
def test_importing_a_package_changes_nothing(packages, needs, unloaded, server):
    """Nor does it load what it is to do without."""
    assert changes(needs, packages, unloaded, server) == {}


@pytest.mark.parametrize(
    ("folder", "needs", "unloaded", "server"),
    # What the libraries set up themselves when a part of them is first used is theirs.
    [
        ("pef_schema", ["numpy", "flatbuffers"], "torch", None),
        ("emulator", ["jax", "jax.numpy"], "torch", warm.JAX),
        ("samba", ["jax", "torch.export._trace", "torch._dynamo"], "", warm.LIBRARIES),
    ],
    ids=["pef_schema", "emulator", "samba"],
)
def test_importing_every_module_changes_nothing(folder, needs, unloaded, server):
    """And the device side loads without torch, and asks for it nowhere."""
    assert changes(needs, modules_of(folder), unloaded, server) == {}


def test_the_snapshot_bites():
    assert list(changes([], ["multiprocessing.util"])) == ["exit handlers"]
    code = f"""{SNAPSHOT}
first = snapshot()
os.environ["SAMBA_X"] = "1"
sys.excepthook = print
warnings.simplefilter("ignore")
last = snapshot()
print(json.dumps([k for k in first if first[k] != last[k]]))
"""
    assert in_fresh_process(code) == ["environment", "excepthook", "warnings"]


def test_tracer_and_compiler_do_not_load_jax():
    """They ask for facts of ops alone; lowerings are the device's.

    Torch's exporter takes a second to load, and is there when something is traced.
    """
    modules = [*modules_of("samba/tracer"), *modules_of("samba/compiler")]
    assert modules_of("emulator/op_facts")
    code = f"""
import importlib, json, sys
for name in {modules!r}:
    importlib.import_module(name)
others = "jax", "torch._dynamo"
loaded = [name for name in sys.modules if name in others or name.startswith("emulator.ops")]
print(json.dumps(loaded))
"""
    assert in_fresh_process(code, warm.SAMBA) == []


@pytest.mark.slow
def test_import_time():
    code = """
import json
from time import process_time
t0 = process_time()
import torch
t1 = process_time()
import sambaflow.samba
t2 = process_time()
print(json.dumps({"torch": t1 - t0, "samba": t2 - t1}))
"""
    # Torch alone takes about 1.3 s on a 2-core server; both together must stay under 2.5 s.
    taken = []
    while min(taken, default=1.2) >= 1.2 and len(taken) < 3:
        taken.append(in_fresh_process(code)["samba"])
    assert min(taken) < 1.2, f"importing sambaflow.samba takes {min(taken):.2f} s beyond torch"
