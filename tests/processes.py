"""Waiting for processes and threads, never without end: who hangs is named, and the test fails."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

FAST_XLA = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    " --xla_cpu_parallel_codegen_split_count=1"
)
"""``XLA_FLAGS`` of the fast tests: small programs compile in half the time.

Most of it goes into LLVM, which no test is about; XLA's emitters of fusions double that, and so do
the up to 32 parts that a program is divided into so that several threads can compile it.
"""
SECONDS = 240.0
"""A limit for what takes seconds; shared machines are slow at times."""
SECONDS_TO_END = 30.0
"""A limit for the end of a process that has closed its output or was killed."""


class Hung(AssertionError):
    """Something did not end in time."""


def host_devices(count: int) -> str:
    """``XLA_FLAGS`` with which a process has several devices; all else as in this one."""
    return f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={count}".strip()


def peak_bytes() -> int:
    """The most memory that this process has had at once.

    Not ``getrusage``'s: that begins with the peak of the process which has started this one.
    """
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) * 1024


def finished(
    command: Sequence[str | Path], *, seconds: float = SECONDS, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end.

    Args:
        command: The program and its arguments.
        seconds: After so long it is killed.
        options: For ``subprocess.run``; without them output and errors are taken as text.

    Returns:
        How it ended.

    Raises:
        Hung: If it has not ended by then; what it had printed is in the message.
    """
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "check": False}
    try:
        return subprocess.run(command, timeout=seconds, **(piped | options))
    except subprocess.TimeoutExpired as error:
        raise hung(f"{list(command)}", seconds, error) from None
    except subprocess.CalledProcessError as error:
        error.add_note(str(error.stderr))
        raise


def said(process: subprocess.Popen[str], *, seconds: float = SECONDS) -> tuple[str, str]:
    """Wait for the end of a process; it is killed if it does not come in time.

    Returns:
        What it printed on its output and among its errors, as far as these are pipes.
    """
    try:
        return process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        process.kill()
        raise hung(f"{process.args}", seconds, error) from None


def ended(process: subprocess.Popen[Any]) -> int:
    """The exit status of a process that is ending; it is killed if it does not get on with it."""
    try:
        return process.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait(SECONDS_TO_END)


def line_of(process: subprocess.Popen[str], *, seconds: float = SECONDS) -> str:
    """The next line of a process, empty at its end; it is killed if none comes in time."""
    stream: IO[str] = process.stdout  # pyright: ignore[reportAssignmentType]  # it is a pipe
    late = threading.Timer(seconds, process.kill)
    late.start()
    try:
        return stream.readline()
    finally:
        late.cancel()


def joined(*threads: threading.Thread, seconds: float = SECONDS) -> None:
    """Wait for threads to end."""
    for thread in threads:
        thread.join(seconds)
        if thread.is_alive():
            raise Hung(f"{thread.name} did not end in {seconds:g} s")


def came(event: threading.Event, *, seconds: float = SECONDS) -> None:
    """Wait until an event has come."""
    if not event.wait(seconds):
        raise Hung(f"what was waited for did not come in {seconds:g} s")


def hung(what: str, seconds: float, error: subprocess.TimeoutExpired) -> Hung:
    """The error of what has not ended in time, with what it had printed."""
    printed = [
        text if isinstance(text, str) else text.decode(errors="replace")
        for text in (error.stdout, error.stderr)
        if text
    ]
    return Hung("\n".join([f"{what} did not end in {seconds:g} s. It had printed:", *printed]))
