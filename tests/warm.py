"""Processes that begin with torch, jax and samba imported: forked from one that has nothing else.

To import them takes a process several seconds of a core, and most tests that start processes are
about what happens later. Tests of how this project is imported fork from one that has torch or
jax alone (:data:`TORCH`, :data:`JAX`), and tests of what is loaded late from :data:`SAMBA`; those
of the start of a process itself take ``tests.processes``.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess, Popen, TimeoutExpired
from types import ModuleType
from typing import IO, Any

from tests.processes import SECONDS, hung

ROOT = Path(__file__).parents[1]
_HEAD = """
import sambaflow.samba, sklearn.datasets
from tests.speed import rehearse
rehearse()
"""
STRICT = "import warnings; warnings.simplefilter('error')"
"""What ``-W error`` does, as code."""
_AT_IMPORT = ("JAX_", "OMP_", "ONEDNN_", "PYTHONHASHSEED", "PYTHONWARNINGS", "TORCH_")
"""Variables that are read when modules are imported begin so."""
_LATER = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE"}
"""Variables that begin so, too, and are read when a process needs them."""
_MOST_BYTES = 2**20
_POLL = 0.01


class Warm:
    """A process of a command; it is asked and ended as one of ``subprocess`` is.

    Args:
        server: What has forked it.
        number: Its number there.
        pid: Its process.
        args: Its command, without the interpreter.
    """

    def __init__(self, server: Server, number: int, pid: int, args: Sequence[str]) -> None:
        self._server, self._number, self.pid, self.args = server, number, pid, list(args)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        if self.returncode is None:
            self.returncode = self._server.ended(self._number)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            TimeoutExpired: If it has not come in time.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(_POLL)
        return status

    def kill(self) -> None:
        """End it, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def finished(
    command: Sequence[str | Path],
    *,
    cwd: str | Path = ROOT,
    env: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
    server: Server | None = None,
) -> CompletedProcess[str]:
    """Run a command to its end, as the function of this name in ``tests.processes`` does.

    The libraries that it shares with what has forked it are not taken apart at its end.

    Args:
        command, cwd, server: As for :func:`start`.
        env: All of its environment; this process's if there is none.
        seconds: After so long it is killed.

    Returns:
        How it ended.

    Raises:
        Hung: If it has not ended by then; what it had printed is in the message.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = start(
            command,
            cwd=cwd,
            env=env or os.environ,
            stdout=out.fileno(),
            stderr=err.fileno(),
            quick=True,
            server=server,
        )
        try:
            process.wait(seconds)
        except TimeoutExpired as error:
            process.kill()
            error.stdout, error.stderr = _text(out), _text(err)
            raise hung(f"{list(command)}", seconds, error) from None
        return CompletedProcess(command, process.wait(1), _text(out), _text(err))


def forked(
    head: str, codes: Sequence[str], *, parent: Server | None = None
) -> list[CompletedProcess[str]]:
    """Run each code in a process of its own that is forked after ``head`` has run.

    Args:
        head: Code that all of them begin with: imports. Without it the processes are forked from
            ``parent``. Warnings are errors after it.
        codes: Code that needs a fresh process.
        parent: What the process of ``head`` is forked from; without one it is the process that all
            tests of this process share.

    Returns:
        How each process ended.
    """
    server = Server(head, parent=parent or _SERVER) if head else parent
    try:
        return [
            finished([sys.executable, "-c", f"{STRICT}\n{code}"], server=server) for code in codes
        ]
    finally:
        if head and server is not None:
            server.close()


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def start(
    command: Sequence[str | Path],
    *,
    cwd: str | Path,
    env: Mapping[str, str],
    stdout: int,
    stderr: int,
    stdin: int | None = None,
    new_session: bool = False,
    quick: bool = False,
    host: int | None = None,
    server: Server | None = None,
) -> Warm:
    """Run a command of Python: a script, ``-m`` and a module, or ``-c`` and code.

    Args:
        command: The interpreter, which is this one, and its arguments.
        cwd: The folder that it runs in.
        env: All of its environment.
        stdout, stderr: Descriptors of files that take what it prints.
        stdin: That of what it reads; without one it reads nothing.
        new_session: Whether it leads a session and group of its own.
        quick: Whether it ends without taking apart the libraries that it shares.
        host: The first process of a host whose namespaces it enters.
        server: What forks it; without one the process that all tests of this process share.

    Returns:
        The process.

    Raises:
        ValueError: If modules that were imported before would not be as they are with these options
            or this environment.
    """
    python, *args = map(str, command)
    others = {k for k in {*env, *os.environ} - _LATER if env.get(k) != os.environ.get(k)}
    at_import = sorted(name for name in others if name.startswith(_AT_IMPORT))
    if python != sys.executable or (args[0].startswith("-") and args[0] not in ("-c", "-m")):
        raise ValueError(f"{list(command)}: expected this Python without options")
    if at_import:
        raise ValueError(f"{', '.join(at_import)}: read when modules are imported")
    request = {"args": args, "cwd": str(cwd), "env": dict(env)}
    request |= {"session": new_session, "quick": quick, "host": host}
    files = [stdout, stderr] if stdin is None else [stdout, stderr, stdin]
    return (server or _SERVER).start(request, files)


def for_children(host: int | None = None) -> dict[str, str]:
    """Variables with which processes of Python are forked, too, that a forked one starts.

    ``WARM_PYTHON`` takes the place of their interpreter (``tests/warm_python.py``).

    Args:
        host: The first process of the host whose namespaces they enter.
    """
    address = _SERVER.address
    stub = Path(address).with_name("python")
    if not stub.exists():
        text = Path(__file__).with_name("warm_python.py").read_text()
        stub.write_text(f"#!{sys.executable} -IS\n{text}")
        stub.chmod(0o755)
    where = {} if host is None else {"WARM_HOST": str(host)}
    return {"WARM_SOCKET": address, "WARM_PYTHON": str(stub), **where}


class Server:
    """The process that forks, started by the first who asks.

    Args:
        head: What it runs first.
        parent: What it is forked from itself; without one it is a fresh process.
    """

    def __init__(self, head: str, *, parent: Server | None = None) -> None:
        self._head, self._parent = head, parent
        self._lock = threading.Lock()
        self._owner = 0
        self._statuses: dict[int, int] = {}
        self._count = 0

    @property
    def address(self) -> str:
        """The socket at which it waits for those who are in the place of the interpreter."""
        with self._lock:
            self._opened()
            return f"{self._folder.name}/socket"

    def start(self, request: Mapping[str, Any], files: Sequence[int]) -> Warm:
        with self._lock:
            self._opened()
            self._count += 1
            text = json.dumps({"number": self._count, **request}).encode()
            socket.send_fds(self._socket, [text], files)
            while (pid := self._read().get(self._count)) is None:
                continue
            return Warm(self, self._count, pid, request["args"])

    def ended(self, number: int) -> int | None:
        with self._lock:
            while number not in self._statuses and select.select([self._socket], [], [], 0)[0]:
                self._read()
            return self._statuses.pop(number, None)

    def _opened(self) -> None:
        if self._owner != os.getpid():  # in a forked process it is another's
            self._open()

    def _open(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="warm-", ignore_cleanup_errors=True)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._statuses.clear()
        command = [
            sys.executable,
            "-c",
            f"import {__name__} as w; w.first()\n{self._head}\nw.serve()",
        ]
        # Sets have another order there than here.
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "random"}
        env["WARM_SOCKET"] = f"{self._folder.name}/socket"
        with theirs:
            if self._parent is None:
                self._process = Popen(
                    command, cwd=ROOT, env=env, stdin=theirs.fileno(), start_new_session=True
                )
            else:
                request = {"args": command[1:], "cwd": str(ROOT), "env": env}
                request |= {"session": True, "quick": False, "host": None}  # it decides for itself
                self._process = self._parent.start(request, [1, 2, theirs.fileno()])
        self._owner = os.getpid()
        atexit.register(self.close)

    def close(self) -> None:
        """End it."""
        if self._owner == os.getpid():
            self._owner = 0
            self._socket.close()
            self._process.wait(30)

    def _read(self) -> dict[int, int]:
        """Take one message: processes that have started, while those that ended are noted."""
        message = self._socket.recv(_MOST_BYTES)
        if not message:
            raise ConnectionError("the process that forks is gone")
        kind, number, value = json.loads(message)
        if kind == "started":
            return {number: value}
        self._statuses[number] = value
        return {}


JAX = Server("import jax.numpy")
"""What forks processes that have jax alone."""
TORCH = Server("import torch")
"""What forks processes that have torch alone."""
SAMBA = Server("import sambaflow.samba", parent=TORCH)
"""What forks processes that have samba, as a script does that has traced nothing yet."""
LIBRARIES = Server("import torch.export._trace, torch._dynamo, jax", parent=TORCH)
"""What forks processes that have all of torch and jax that samba may load, and nothing of samba."""
_SERVER = Server(_HEAD, parent=LIBRARIES)


def first() -> None:
    """Before anything else is imported: what is to happen last when the process ends."""
    atexit.register(_keep_libraries)


_QUICK: list[bool] = []
"""Filled in a process that ends without taking the libraries apart."""


def _end_quickly() -> None:
    """Let this process end without taking the libraries apart that it shares with its parent.

    That copies their memory first, and takes half a second. Threads are waited for and exit
    handlers run as ever.
    """
    _QUICK.append(True)
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # of glibc; elsewhere processes end as ever
        # Called with the exit status, before what C++ has registered at the import of libraries.
        libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)


def _keep_libraries() -> None:
    if _QUICK:
        own = {*sys.stdlib_module_names, "samba", "sambaflow", "emulator", "pef_schema", "bench"}
        others = [name for name in sys.modules if name.partition(".")[0] not in own]
        kept = {name: sys.modules.pop(name) for name in others if name != "__main__"}
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def serve() -> None:
    """Fork a process for each request that comes on the input, until whoever asks is gone.

    Others ask at a socket, and stay connected until their process has ended. In a forked process
    this runs the command and returns, and the process ends as Python does.
    """
    gc.collect()
    gc.freeze()
    control = socket.socket(fileno=os.dup(0))
    _read_nothing()
    others = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    others.bind(os.environ["WARM_SOCKET"])
    others.listen()
    running: dict[int, int | socket.socket] = {}
    while True:
        askers = {pid: asker for pid, asker in running.items() if not isinstance(asker, int)}
        sockets = [control, others, *askers.values()]
        ready = select.select(sockets, [], [], _POLL if running else None)[0]
        for pid, asker in askers.items():
            if asker in ready:
                _pass_on(asker, pid)
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            _answer(running.pop(pid), os.waitstatus_to_exitcode(status), control)
        for source in {control, others}.intersection(ready):
            asker = source if source is control else source.accept()[0]
            text, files, _, _ = socket.recv_fds(asker, _MOST_BYTES, 3)
            if not text and asker is control:
                _end_quickly()
                return
            if not text:  # it was killed before it had asked
                asker.close()
                continue
            request = json.loads(text)
            pid = os.fork()
            if not pid:
                for one in {*sockets, asker}:
                    one.close()
                _run(request, files)
                return
            for file in files:
                os.close(file)
            running[pid] = asker if source is others else request["number"]
            if source is control:
                control.send(json.dumps(("started", request["number"], pid)).encode())


def _pass_on(asker: socket.socket, pid: int) -> None:
    """Send a process the signal of who is in its place; kill it with its own if that is gone."""
    with contextlib.suppress(OSError):
        if number := asker.recv(64):
            os.kill(pid, int(number))
        else:
            os.killpg(pid, signal.SIGKILL)


def _answer(asker: int | socket.socket, code: int, control: socket.socket) -> None:
    """Tell who has asked for a process how it has ended."""
    if isinstance(asker, int):
        control.send(json.dumps(("ended", asker, code)).encode())
        return
    with asker, contextlib.suppress(OSError):
        asker.send(b"%d" % code)


def _read_nothing() -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def _run(request: Mapping[str, Any], files: Sequence[int]) -> None:
    """Become the process of a command, and run it."""
    if request.get("quick"):
        _end_quickly()
    if request.get("session", True):
        os.setsid()
    if request.get("host") is not None:
        _enter(request["host"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.executable = os.environ.get("WARM_PYTHON", sys.executable)
    tempfile.tempdir = None  # the environment may name another folder
    for file, own in zip(files, (1, 2, 0), strict=False):  # the last only where there is one
        os.dup2(file, own)
        os.close(file)
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)
    first, *rest = request["args"]
    main = ModuleType("__main__")
    if first == "-c":
        sys.argv, folder = ["-c", *rest[1:]], ""
        code = compile(rest[0], "<string>", "exec")
    elif first == "-m":
        code, folder = _module(main, rest[0]), os.getcwd()
        sys.argv = [str(main.__file__), *rest[1:]]
    else:
        script = Path(first).absolute()
        sys.argv, folder, main.__file__ = [first, *rest], str(script.resolve().parent), str(script)
        code = compile(script.read_bytes(), str(script), "exec")
    others = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), *sys.path[1:]]
    sys.path[:] = [folder, *dict.fromkeys(path for path in others if path)]
    sys.modules["__main__"] = main
    exec(code, vars(main))


_SPACES = ("net", "uts", "pid", "mnt")


def _enter(first: int) -> None:
    """Go on in the namespaces of a host, in a child, as ``nsenter`` does."""
    libc = ctypes.CDLL(None, use_errno=True)
    spaces = [os.open(f"/proc/{first}/ns/{kind}", os.O_RDONLY) for kind in _SPACES]
    for kind, space in zip(_SPACES, spaces, strict=True):
        if libc.setns(space, 0):
            raise OSError(ctypes.get_errno(), f"setns: {kind}")
        os.close(space)
    child = os.fork()  # only what is forked now is in the table of processes
    if child:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: os.kill(child, number))
        while not (end := os.waitpid(child, os.WNOHANG))[0]:
            time.sleep(_POLL)  # a signal that came just before a longer wait would wait as long
        code = os.waitstatus_to_exitcode(end[1])
        os._exit(code if code >= 0 else 128 - code)


def _module(main: ModuleType, name: str) -> Any:
    """The code that ``python -m`` runs, and what it sets of ``__main__`` before."""
    import importlib.util

    sys.path.insert(0, os.getcwd())
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    assert spec is not None and spec.loader is not None
    main.__spec__, main.__file__, main.__package__ = spec, spec.origin, spec.parent
    return spec.loader.get_code(spec.name)
