"""Options that were given and that nothing reads are named when an app ends."""

from __future__ import annotations

import argparse
import copy
import json
import os
import pickle
import sys
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

from samba.argconf.parsed import NotedArgs, looked_at, noted_fields, unread_options
from tests.warm import finished

APP = """
import sys, torch
import sambaflow.samba as samba
import sambaflow.samba.utils as utils
from sambaflow.samba.utils.argparser import parse_app_args

def options(parser):
    parser.add_argument("--epochs", type=int, default=1)

args = parse_app_args(sys.argv[1:], common_parser_fn=options)
model = torch.nn.Linear(8, 1)
samba.from_torch_model_(model)
x = samba.from_torch_tensor(torch.ones(4, 8), name="input", batch_dim=0)
optimizer = samba.optim.SGD(model.parameters(), lr=0.1)
if args.command == "compile":
    samba.session.compile(model, (x,), optimizer, name="net")
elif args.command == "run":
    utils.trace_graph(model, (x,), optimizer, pef=args.pef)
    samba.session.run((x,), ())
{rest}
"""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("unread")

    def run(line: str, rest: str = "") -> CompletedProcess[str]:
        (folder / "app.py").write_text(APP.format(rest=rest))
        return finished([sys.executable, "app.py", *line.split()], cwd=folder, env=dict(os.environ))

    done = run("compile -p net.pef --epochs 1")
    assert done.returncode == 0, done.stderr
    assert told(done) == ["--epochs, which the script has not read"]
    return run


def told(done: CompletedProcess[str]) -> list[str]:
    """What is said of options without effect, part by part; the rest must be empty."""
    begin, end = "options without effect: ", " [deviation: option-without-effect]"
    lines = [line for line in done.stderr.splitlines() if "chosen-losses" not in line]
    assert all(line.startswith(begin) and line.endswith(end) for line in lines), done.stderr
    assert len(lines) <= 1
    return lines[0].removeprefix(begin).removesuffix(end).split("; ") if lines else []


def test_what_changes_nothing_is_told_once(app) -> None:
    done = app("run -p net.pef --batch-size 32 --inference -n 3 --epochs=2")
    assert done.returncode == 0
    assert told(done) == [
        "--batch-size, --inference, which a run takes from its PEF",
        "-n, --epochs, which the script has not read",
    ]


def test_what_the_pef_says_anyway_is_not_told(app) -> None:
    assert told(app("run -p net.pef -b 4 --mapping section --log-level=warning")) == []
    (line,) = told(app("run -p net.pef --mapping spatial"))
    assert line == "--mapping, which a run takes from its PEF"


@pytest.mark.parametrize(
    "rest",
    [
        "args.epochs",
        "dict(vars(args))",
        pytest.param("vars(args)['epochs']", marks=pytest.mark.slow),
        pytest.param("getattr(args, 'epochs', 1)", marks=pytest.mark.slow),
    ],
)
def test_what_the_app_reads_is_not_told(app, rest: str) -> None:
    assert told(app("run -p net.pef --epochs 2", rest)) == []


@pytest.mark.parametrize(
    "rest", ["print(args)", pytest.param("'epochs' in args", marks=pytest.mark.slow)]
)
def test_to_print_is_not_to_read(app, rest: str) -> None:
    (line,) = told(app("run -p net.pef --epochs 2", rest))
    assert line == "--epochs, which the script has not read"


def test_an_app_that_failed_or_did_nothing_may_not_have_come_to_it(app) -> None:
    failed = app("run -p net.pef --epochs 2", "raise RuntimeError('theirs')")
    assert "options without effect" not in failed.stderr
    done = app("measure-performance -p net.pef --epochs 2")
    assert "options without effect" not in done.stderr


def pickled(value: object) -> object:
    return pickle.loads(pickle.dumps(value))  # noqa: S301  # what this test has made


def noted() -> NotedArgs:
    fields = argparse.Namespace(batch_size=8, lr=0.5)
    return NotedArgs(fields, {"batch_size": "-b", "lr": "--lr"})


def test_noted_arguments_are_a_namespace() -> None:
    args, plain = noted(), argparse.Namespace(batch_size=8, lr=0.5)
    assert repr(args) == repr(plain) and "lr" in args and "none" not in args
    assert args == plain and vars(args) == vars(plain)
    assert json.dumps(vars(args)) == json.dumps(vars(plain))
    for made in (copy.copy(args), copy.deepcopy(args), pickled(args)):
        assert type(made) is argparse.Namespace and made == plain
    args.lr = 1.0
    del args.batch_size
    assert vars(args) == {"lr": 1.0}
    assert not hasattr(args, "batch_size")


def test_a_session_reads_some_fields() -> None:
    args = noted()
    fields = noted_fields(args)
    assert set(fields) == {"batch_size", "lr"} and len(fields) == 2
    assert "lr" in fields and 3 not in fields and fields.get("none", 7) == 7
    assert looked_at(fields)["lr"] == looked_at(args)["lr"] == 0.5
    assert unread_options(args) == {"batch_size": "-b", "lr": "--lr"}
    assert fields["lr"] == 0.5
    assert unread_options(args) == {"batch_size": "-b"}
    plain = argparse.Namespace(lr=1)
    assert noted_fields(plain) is vars(plain) and looked_at({"a": 1}) == {"a": 1}
    assert unread_options(plain) == {}
