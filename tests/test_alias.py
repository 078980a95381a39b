"""``sambaflow.samba`` is ``samba``: one set of module objects under two names."""

from __future__ import annotations

import importlib
import logging
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
import torch

import samba.version
import sambaflow
from samba.support.alias import AliasFinder, alias_package
from sambaflow.logging import SambaLogger, samba_logger
from sambaflow.mac.metadata import ConvTilingMetadata
from sambaflow.sambacollections import OrderedSet
from tests.processes import finished
from tests.warm import TORCH, forked

ROOT = Path(__file__).parents[1]


FRESH = {
    "package and submodules are the same objects": """
        import sambaflow.samba as alias
        import samba
        assert alias is samba
        from sambaflow import samba as third
        assert third is samba

        import sambaflow.samba.utils.argparser as a
        import samba.utils.argparser as b
        assert a is b
        assert a.__name__ == a.__spec__.name == "samba.utils.argparser"

        import sys
        assert sys.modules["sambaflow.samba.utils"] is sys.modules["samba.utils"]
        assert sys.modules["sambaflow.samba.sambatensor"] is sys.modules["samba.sambatensor"]
    """,
    "real name first gives the same objects": """
        import samba.utils.argparser
        session = samba.session
        from sambaflow.samba.utils.argparser import parse_app_args
        assert parse_app_args is samba.utils.argparser.parse_app_args
        from sambaflow.samba.session import SambaSession
        assert samba.session is session, "the global instance stays"
        assert isinstance(session, SambaSession)
    """,
    "alias keeps the global session": """
        from sambaflow.samba.session import SambaSession
        import sambaflow.samba.session
        import sambaflow
        assert isinstance(sambaflow.samba.session, SambaSession)
    """,
    "unknown names fail as python does": """
        import importlib
        for name in ("sambaflow.samba.nothing_here", "sambaflow.nothing_here"):
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                assert "nothing_here" in str(error)
            else:
                raise AssertionError(name)
        import sambaflow
        assert not hasattr(sambaflow, "nothing_here")
    """,
    "attributes are there with only the root imported": """
        import sambaflow
        assert "samba" not in sys.modules
        sambaflow.samba.optim.SGD
        sambaflow.samba.utils.trace_graph
        sambaflow.samba.SambaTensor
        sambaflow.logging.samba_logger
        sambaflow.sambacollections.OrderedSet
    """,
}
"""What holds in a process that has imported neither name; its assertions are the test."""


@pytest.fixture(scope="module")
def outcomes():
    neither = "import sys; assert not sys.modules.keys() & {'samba', 'sambaflow'}"
    codes = [f"{neither}\n{textwrap.dedent(code)}" for code in FRESH.values()]
    return dict(zip(FRESH, forked("", codes, parent=TORCH), strict=True))


@pytest.mark.parametrize("what", FRESH)
def test_in_a_fresh_process(what, outcomes):
    assert outcomes[what].returncode == 0, outcomes[what].stderr


def test_the_root_loads_nothing_and_aliases_nothing():
    code = """
        import sys
        import sambaflow
        assert "torch" not in sys.modules and "samba" not in sys.modules
        assert not any("alias" in type(f).__module__ for f in sys.meta_path)
    """
    done = finished(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package whose module ``state`` is hidden behind an object of the same name."""
    root = tmp_path / "realpkg"
    root.mkdir()
    (root / "__init__.py").write_text("from .state import state\n")
    (root / "state.py").write_text("class State: pass\nstate = State()\n")
    (root / "late.py").write_text("from . import state\n")
    (root / "runs.py").write_text("from .state import State\nState.runs = 0\n")
    (root / "counted.py").write_text("from . import runs\nruns.State.runs += 1\nclass Own: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield alias_package(alias="aliaspkg", real="realpkg")
    for name in [n for n in sys.modules if n.partition(".")[0] in ("realpkg", "aliaspkg")]:
        del sys.modules[name]


def test_hidden_modules_stay_hidden_and_importable(package):
    module = importlib.import_module("aliaspkg.state")
    assert isinstance(package.state, module.State)
    assert sys.modules["aliaspkg.state"] is sys.modules["realpkg.state"]


def test_modules_loaded_later_are_shared(package):
    late = importlib.import_module("aliaspkg.late")
    assert late is importlib.import_module("realpkg.late")
    assert late.state is package.state
    assert late.__spec__.name == "realpkg.late"


def test_a_module_first_imported_under_the_alias_runs_once(package):
    alias = importlib.import_module("aliaspkg.counted")
    assert type(package.state).runs == 1
    real = importlib.import_module("realpkg.counted")
    assert real is alias and real.Own is alias.Own
    assert package.counted is alias
    assert sys.modules["aliaspkg.counted"] is sys.modules["realpkg.counted"]


def test_one_finder_however_often_asked(package):
    again = alias_package(alias="aliaspkg", real="realpkg")
    assert again is package
    finders = [f for f in sys.meta_path if isinstance(f, AliasFinder) and f.alias == "aliaspkg"]
    assert len(finders) == 1
    assert finders[0].find_spec("json", None) is None
    assert finders[0].find_spec("aliaspkg2.x", None) is None


def test_version_is_the_projects():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert sambaflow.__version__ == project["version"] == samba.version.__version__
    assert sambaflow.is_demo() is False


def test_log_limit(caplog):
    logger = SambaLogger(logging.getLogger("samba.test_alias"))
    with caplog.at_level(logging.INFO):
        for i in range(3):
            logger.warning("limited", log_limit=1)
            logger.warning("number %d", i, log_limit=2)
            logger.info("always")
    assert [r.getMessage() for r in caplog.records] == [
        "limited",
        "number 0",
        "always",
        "number 1",
        "always",
        "always",
    ]
    assert caplog.records[0].funcName == "test_log_limit"


def test_a_silenced_message_does_not_use_up_its_limit(caplog):
    logger = SambaLogger(logging.getLogger("samba.test_alias"))
    with caplog.at_level(logging.ERROR):
        logger.warning("later", log_limit=1)
    with caplog.at_level(logging.INFO):
        logger.warning("later", log_limit=1)
    assert [r.getMessage() for r in caplog.records] == ["later"]


def test_samba_logger_is_an_ordinary_logger():
    assert samba_logger.logger is logging.getLogger("samba")
    assert not samba_logger.logger.handlers


def test_ordered_set_tells_tensors_apart_by_identity():
    a, b = torch.zeros(2), torch.zeros(2)
    params = OrderedSet([b, a, b])
    assert len(params) == 2 and [p is q for p, q in zip(params, (b, a), strict=True)] == [True] * 2
    assert a in params and torch.zeros(2) not in params
    named = OrderedSet([("a", a), ("b", b)])
    assert ("a", a) in named and ("a", b) not in named


def test_ordered_set_is_a_set():
    s = OrderedSet([3, 1, 2])
    s.add(1)
    s.discard(7)
    s.update([5], {3})
    assert list(s) == [3, 1, 2, 5] and list(reversed(s)) == [5, 2, 1, 3]
    s.remove(3)
    assert s == {1, 2, 5} and list(s - {2}) == [1, 5] and isinstance(s - {2}, OrderedSet)
    with pytest.raises(KeyError):
        s.remove(3)


def test_conv_tiling_metadata():
    hint = ConvTilingMetadata(original_size=[1, 3, 8, 8])
    assert hint.original_size == [1, 3, 8, 8]
    assert isinstance(ConvTilingMetadata.key, str)
