"""What every test shares: fixed seeds, and a fresh session after each test."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import random
import signal
import sys

import numpy as np
import pytest
from hypothesis import settings

from tests.processes import FAST_XLA

# pytest-xdist fills the cores with processes; torch's threads would only wait for each other.
# Set before torch is imported, and for the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# `make test-all` sets it to nothing and so runs every test on the code that users run, except
# sweeps of traces (`cheap_code`).
os.environ.setdefault("XLA_FLAGS", FAST_XLA)

# No test writes into the cache of whoever runs it, and none finds what an earlier run left there.
# TEST_CACHE names a folder for a run with kept executables, plans and traces.
os.environ["EMULATOR_CACHE"] = os.environ.get("TEST_CACHE", "0")

# Shared machines are slow at times, and a failure must come again when asked for.
settings.register_profile(
    "project",
    deadline=None,
    derandomize=True,
    max_examples=25 if os.environ["XLA_FLAGS"] else 100,  # all of them in `make test-all`
)
settings.load_profile("project")

# What a shell starts in the background ignores Ctrl-C, and so would the tests of it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Imports make a million objects that all stay: to look for garbage among them takes seconds.
gc.disable()

# pytest takes the other one away while a test runs.
_STDERR = os.dup(2)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Tests of one file share what they compile when they run in one process, where they can."""
    from xdist.scheduler.worksteal import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


def pytest_collection_finish():
    """A sixth of the time went into collections that walked all of torch and jax each time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_runtest_logfinish():
    """Between two tests a process waits for the other's; one that waits forever says where.

    pytest's own timer (``faulthandler_timeout``) runs within a test.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        faulthandler.dump_traceback_later(1500, exit=True, file=_STDERR)


@pytest.fixture(autouse=True, scope="session")
def quick_traces():
    """Half the time of a small trace is torch listing its own operators, again each time.

    `make test-all` runs every test through torch and jax as they are, except long sweeps.
    """
    if not os.environ["XLA_FLAGS"]:
        return
    from tests.speed import keep_bookkeeping, keep_contexts

    if "torch" in sys.modules:
        keep_bookkeeping()
    if "jax" in sys.modules:
        keep_contexts()


@pytest.fixture
def cheap_traces(monkeypatch):
    """What `quick_traces` does, in `make test-all`, too: for tests of hundreds of traces."""
    if not os.environ["XLA_FLAGS"]:
        from tests.speed import keep_bookkeeping, keep_contexts

        keep_bookkeeping(monkeypatch.setattr)
        keep_contexts(monkeypatch.setattr)


@pytest.fixture
def cheap_code(cheap_traces, monkeypatch):
    """Plans compile as in the fast tests: for sweeps of what is traced, not of what XLA makes."""
    if not os.environ["XLA_FLAGS"]:
        from emulator.plans import xla_options

        flags = dict(flag.removeprefix("--").split("=") for flag in FAST_XLA.split())
        fast = {name: json.loads(value) for name, value in flags.items()}
        monkeypatch.setattr(xla_options, "_CPU", {**xla_options._CPU, **fast})


@pytest.fixture
def quick_llvm(monkeypatch):
    """XLA makes what it makes as ever, and LLVM less of it: for tests that look at XLA's alone."""
    from emulator.plans import xla_options

    options = {**xla_options._CPU, "xla_backend_optimization_level": 0}
    monkeypatch.setattr(xla_options, "_CPU", options)


@pytest.fixture(autouse=True)
def fixed_seeds():
    """Start every test from the same random state."""
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        # Not torch's own, which notes the stack for each kind of device that it seeds later.
        sys.modules["torch"].default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def fresh_session():
    """Leave no model, no PEF and no device behind in the global session."""
    yield
    if "samba" in sys.modules and hasattr(sys.modules["samba"], "session"):
        sys.modules["samba"].session.reset()
