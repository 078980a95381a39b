"""A process among its replicas: how it joins them, communicates with them, and leaves."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from emulator.held_signals import HELD
from emulator.replicas.comm.agreement import differing, texts_unless_same
from emulator.replicas.comm.errors import (
    CollectiveTimeout,
    DataEnded,
    DataParallelError,
    Disagreement,
    OutOfStep,
    PeerLost,
    StepAbandoned,
    name_ranks,
)
from emulator.replicas.comm.protocol import Communicator
from emulator.replicas.comm.worker import CommThread
from emulator.start import prefer_device
from pef_schema.printable import say
from samba.abexit import SambaAtexit, end_now, watch_end
from samba.distributed.addresses import Place, prefer_loopback
from samba.distributed.environment import Launch, detect, divide_cores
from samba.distributed.errors import OneProgram, is_of_collective
from samba.distributed.gloo import control_beside_torch, control_of_all, lone_control, settle
from samba.distributed.rendezvous import (
    STORE_SECONDS,
    Meeting,
    agree_on_engine,
    choose,
    host_of,
    meet,
    outlives_processes,
    own_client,
    start_jax,
)
from samba.distributed.settings import PRESENT, deadline_seconds, engine_name
from samba.distributed.stores import PrefixStore, Store, own_generation
from samba.distributed.watchdog import Watchdog

T = TypeVar("T")

_STUCK_SECONDS = 1
_LOOK_SECONDS = 0.1
_END_SECONDS = 3
"""How long a process that failed may take to end in the usual way."""
_CORES_OF_MESH = 2
"""A thread of XLA's looks out for the other processes' parts without a pause: on one core it keeps
the threads from running that would bring them, and a step takes three times as long."""
_ADVICE = "All ranks stop; start again from the last checkpoint."
_SAME = "All of them must run the same PEF with the same arguments."
_UNEVEN = (
    "If the data of some ranks ends early, give all ranks the same number of batches "
    "(DistributedSampler and drop_last=True, or utils.ElasticSampler), or train within "
    "`with samba.session.join():`."
)


class Job:
    """The replicas of a data parallel run, as this process sees them.

    Args:
        control: Communicator over gloo, for agreements and broadcasts.
        watchdog: Signs of life; None if this is the only rank.
        data: Communicator of the engine that reduces gradients.
        one_program: Whether the processes are not replicas, but have the chips of one program.

    Attributes:
        failing: Whether an error that nobody caught is ending this process.
        calls: What this rank has done together with the others, counted.
        exit_code: What tells the code that the program has given to ``sys.exit``.
    """

    def __init__(
        self,
        control: Communicator,
        watchdog: Watchdog | None,
        data: Communicator,
        *,
        one_program: bool = False,
    ) -> None:
        self.control, self.watchdog, self.data = control, watchdog, data
        self.one_program = one_program
        self.rank, self.size, self.deadline = control.rank, control.size, control.deadline
        self.failure: DataParallelError | None = None
        self.failing = False
        self._pid = os.getpid()
        self.calls = 0
        self.exit_code: Callable[[], int] = lambda: 0
        self.thread = CommThread(
            "samba-comm",
            deadline=self.deadline,
            alarm=(lambda _: None) if watchdog is None else watchdog.check,
        )

    @property
    def engine(self) -> str:
        """Name of the engine that reduces gradients."""
        return self.data.engine

    def refuse_one_program(self, what: str) -> None:
        """Refuse what is for replicas where processes have the chips of one program.

        Args:
            what: What is refused.

        Raises:
            OneProgram: Then.
        """
        if self.one_program:
            raise OneProgram(what=what, size=self.size)

    def together(self, operation: str, do: Callable[[Communicator], T]) -> T:
        """Do something that all ranks do at the same point of their programs.

        Args:
            operation: What it is, for errors.
            do: A function of the control communicator; runs on the communication thread.

        Returns:
            What it returns.

        Raises:
            DataParallelError: If a rank does not take part.
        """
        self.check()
        self.enter(operation)
        results: list[T] = []
        try:
            with HELD:  # a rank that stopped between asking and waiting would be out of step
                work = self.thread.submit(operation, lambda: results.append(do(self.control)))
                self.thread.wait((work,))
        except (Disagreement, DataEnded):
            raise
        except Exception as error:
            explained = self.explain(operation, error)
            if explained is error:
                raise
            raise explained from error
        return results[0]

    def enter(self, operation: str) -> None:
        """Note what this rank begins to do together with the others, for them to compare.

        Args:
            operation: What it is; all ranks say the same of the same thing.
        """
        self.calls += 1
        if self.watchdog is not None and not self.one_program:
            self.watchdog.enter(self.calls, operation)

    def gather(self, operation: str, data: bytes) -> list[bytes]:
        """Gather one value from each rank, at the same point of their programs.

        Args:
            operation: What it is for.
            data: What this rank gives.

        Returns:
            The values, by rank.

        Raises:
            OutOfStep: If a rank gives something for another operation.
            DataParallelError: If a rank does not take part.
        """
        mark = operation.encode() + b"\2"
        rows = self.together(operation, lambda control: texts_unless_same(control, mark + data))
        if rows is None:
            return [data] * self.size
        if not all(row.startswith(mark) for row in rows):
            names = [row.split(b"\2", 1)[0].decode(errors="replace") for row in rows]
            doing = {rank: name for rank, name in enumerate(names) if name != operation}
            raise self.explain(operation, OutOfStep(operation=operation, doing=doing))
        return [row[len(mark) :] for row in rows]

    def agree(self, when: str, facts: dict[str, str], *, advice: str = _SAME) -> None:
        """Make sure that all ranks are about to do the same.

        Args:
            when: Where in the program this is, for the error.
            facts: What must be the same, by name.
            advice: What to do if it is not.

        Raises:
            Disagreement: If it is not; every rank raises it.
        """
        rows = self.gather(when, json.dumps(facts).encode())
        different = differing([json.loads(row) for row in rows])
        if different:
            raise Disagreement(
                when=when,
                facts=different,
                who="processes" if self.one_program else "replicas",
                advice=advice,
            )

    # -- failures -----------------------------------------------------------

    def check(self) -> None:
        """Raise if replicas have failed before: no collective can work after that.

        Raises:
            DataParallelError: Then.
        """
        if self.failure is not None:
            raise DataParallelError(
                f"the replicas have failed before, and cannot go on: {self.failure}",
                ranks=self.failure.ranks,
            ) from self.failure

    def explain(self, operation: str, error: BaseException) -> BaseException:
        """An error that names the rank at fault, for one that an engine raised.

        Args:
            operation: What was done, with its step and bucket.
            error: What was raised; errors that are not about communication are returned as
                they are.
        """
        if not isinstance(error, DataParallelError):
            return error
        watchdog, abandoned = self.watchdog, isinstance(error, StepAbandoned)
        ranks, reason, advice = error.ranks, getattr(error, "reason", ""), _ADVICE
        if watchdog is not None:
            if not abandoned:
                watchdog.look_again()  # what a rank told last before it ended
            if not ranks:
                # Who presses Ctrl-C twice does not wait for what might show later.
                blame = watchdog.blame(0.0) if abandoned else watchdog.blame()
                ranks, reason = blame.ranks, blame.reason
            if not abandoned:
                # A rank that found it out first has ended, and broken the connection.
                error = watchdog.out_of_step(operation) or error
            if isinstance(error, OutOfStep):
                ranks = error.ranks
            if not abandoned and watchdog.ended_early(ranks):
                advice = f"{_ADVICE} {_UNEVEN}"
        text = f"{reason}. {advice}" if reason else advice
        details: Any = {"operation": operation, "ranks": ranks, "reason": text}
        match error:
            case OutOfStep(doing=doing, steps=steps):
                advice = f"{_ADVICE} {_UNEVEN}"
                failure = OutOfStep(operation=operation, doing=doing, steps=steps, advice=advice)
            case CollectiveTimeout(seconds=seconds):
                failure = CollectiveTimeout(seconds=seconds, **details)
            case PeerLost():
                failure = PeerLost(**details)
            case StepAbandoned(signal=number):
                failure = StepAbandoned(signal=number, **details)
            case _:  # perhaps all ranks are there: the error itself says what happened
                blamed = f" ({name_ranks(ranks)}: {reason})" if ranks != error.ranks else ""
                text = f"{operation}: {str(error).rstrip('.')}{blamed}. {_ADVICE}"
                failure = DataParallelError(text, ranks=ranks)
        self.failure = failure
        if watchdog is not None:
            text = f"{operation} failed because of {name_ranks(failure.ranks)}"
            watchdog.tell("failed", text, failure.ranks)
        return failure

    # -- the end of the process ---------------------------------------------

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks that an error ends this one, and see to it that it does end.

        Args:
            error: What the program raised and nobody caught.
        """
        if self.watchdog is None or os.getpid() != self._pid:
            return
        self.failing = True
        if not isinstance(error, DataParallelError) and is_of_collective(error):
            blame = self.watchdog.blame()
            text = f"a collective of {name_ranks(blame.ranks)}"
            say(f"samba: {name_ranks(blame.ranks)} at fault: {blame.reason}", file=sys.stderr)
            self._tell_of_ahead(self.watchdog)
            self.watchdog.tell("failed", text, blame.ranks)
        blames = error.ranks if isinstance(error, DataParallelError) else ()
        text = f"{type(error).__name__}: {error}".strip()
        self.watchdog.tell("failed", text, blames, wait=_END_SECONDS)
        if self.engine == "jax":
            if self.rank == 0:
                self._let_others_speak(self.watchdog)
            # What jax does at exit waits for all ranks and then aborts the process.
            SambaAtexit.end(1)
        with contextlib.suppress(ValueError, OSError):
            faulthandler.dump_traceback_later(_END_SECONDS, exit=True, file=2)

    def _let_others_speak(self, watchdog: Watchdog) -> None:
        """Wait until the others have said what is wrong: jax's service here takes them along."""
        waited = threading.Event()
        for _ in range(int(_END_SECONDS / _LOOK_SECONDS)):
            if watchdog.all_ended() or watchdog.is_cut_off():
                return
            waited.wait(_LOOK_SECONDS)

    def leave(self) -> None:
        """Tell the other ranks that this program has ended."""
        if os.getpid() != self._pid:
            return
        if self.failure is None:
            settle(_STUCK_SECONDS)
        if self.watchdog is None:
            return
        code = self.exit_code()
        how = f"it exited with code {code}" if code else "it ran to its end, or exited"
        self.watchdog.tell("left", how)
        if self.failure is None and not self.failing and not code:
            self._see_others_end(self.watchdog)
        # A thread that is still inside the store when the interpreter ends would abort the process:
        # a usual end waits for as long as a call of the store may take.
        patience = _STUCK_SECONDS if self.failure is not None else 2 * STORE_SECONDS
        stopped = self.watchdog.stop(patience), self.thread.close(_STUCK_SECONDS)
        if not all(stopped) and (self.failure is not None or not stopped[1]):
            # A thread waits for a rank that does not come. It would abort the interpreter's end,
            # or keep it waiting.
            end_now(code or 1)
        if code and self.engine == "jax":
            # What jax does at exit waits for all ranks and then aborts the process.
            SambaAtexit.end(code)

    def _see_others_end(self, watchdog: Watchdog) -> None:
        """Wait for the others to end: one that goes on training has more data than this one.

        jax, too, gives the others only seconds to end after the first has.
        """
        waited = threading.Event()
        for _ in range(int(self.deadline / _LOOK_SECONDS)):
            if self._tell_of_ahead(watchdog):
                end_now(1)
            if watchdog.any_failed():
                if self.engine == "jax":  # its runtime would abort the process
                    end_now(1)
                return
            if watchdog.all_ended() or watchdog.is_cut_off():
                return
            waited.wait(_LOOK_SECONDS)

    def _tell_of_ahead(self, watchdog: Watchdog) -> bool:
        """Say which ranks are in runs that this one does not take part in; whether there are."""
        ahead = watchdog.ahead()
        if not ahead:
            return False
        places = "; ".join(f"rank {rank} is in {doing}" for rank, doing in ahead.items())
        say(
            f"samba: rank {self.rank} finished after {watchdog.step} steps of session.run, "
            f"but others continue: {places}. {_ADVICE} {_UNEVEN}",
            file=sys.stderr,
        )
        return True


def current() -> Job | None:
    """The job of this process, None outside of a data parallel run."""
    return PRESENT.value


def is_failing() -> bool:
    """Whether an error that nobody caught is ending this process."""
    job = current()
    return job is not None and job.failing


def is_set_up() -> bool:
    """Whether torch's default process group is up: this process has met others, or a script has."""
    return dist.is_initialized()


def start(launch: Launch | None = None, *, one_program: bool = False) -> Job | None:
    """Join the other replicas: afterwards torch's default process group is up.

    Args:
        launch: Which replica this is; what the launcher's variables tell if None.
        one_program: Whether the processes are not replicas, but have the chips of one program: jax
            then joins them, and torch knows nothing of it.

    Returns:
        The job; None if no launcher has started this process. A second call returns the job
        of the first.

    Raises:
        CannotListen: If this host does not have the address or interface that is asked for.
        DataParallelError: If the others do not come.
        ArgumentError: If environment variables have values they cannot have.
    """
    job = current()
    if job is not None:
        if not one_program:
            job.refuse_one_program("joining replicas")
        return job
    if dist.is_initialized():
        return adopt()
    launch = detect() if launch is None else launch
    if launch is None:
        return None
    deadline, engine = deadline_seconds(), "jax" if one_program else engine_name()
    divide_cores(launch, _CORES_OF_MESH if one_program else 1)
    prefer_device(launch.local_rank)
    with meet(launch, seconds=deadline) as meeting:
        place = choose(meeting, launch.rank, launch.size, deadline)
        if place.shared:
            prefer_loopback()
        try:
            make = lone_control if one_program else control_beside_torch
            control = make(meeting.store, launch, place.hostname, deadline)
        except RuntimeError as error:
            raise DataParallelError(
                f"rank {launch.rank}: {launch.size} processes did not come together: {error}"
            ) from error
    return _join(meeting, place, engine, control, one_program=one_program)


def adopt() -> Job:
    """Make a job of the processes of torch's default group, which the script has set up.

    Returns:
        The job.
    """
    job = current()
    if job is not None:
        return job
    number = os.environ.get("LOCAL_RANK", "")
    prefer_device(int(number) if number.isascii() and number.isdecimal() else dist.get_rank())
    store = dist.distributed_c10d._get_default_store()
    deadline = deadline_seconds()
    adopted: Store = PrefixStore("samba/adopted", store)
    if outlives_processes():
        rank, size = dist.get_rank(), dist.get_world_size()
        adopted = own_generation(adopted, rank=rank, size=size, seconds=deadline)
    meeting = Meeting(store=adopted, host=host_of(store), keeper=0)
    place = choose(meeting, dist.get_rank(), dist.get_world_size(), deadline)
    return _join(meeting, place, engine_name(), control_of_all(place.hostname, deadline))


def _join(
    meeting: Meeting,
    place: Place,
    engine: str,
    control: Communicator,
    *,
    one_program: bool = False,
) -> Job:
    rank, size, deadline = control.rank, control.size, control.deadline
    watchdog = None
    if size > 1:
        watchdog = Watchdog(own_client(meeting.store), rank=rank, size=size, keeper=meeting.keeper)
    try:
        if watchdog is not None:
            control.barrier()  # all of them have given a sign
            watchdog.start()
            agree_on_engine(control, f"{engine}, one program" if one_program else engine)
        jax = engine == "jax" and size > 1
        data = start_jax(meeting, place, rank, size, deadline) if jax else control
    except BaseException:
        # A thread within the store or gloo when the interpreter ends would abort the process.
        if watchdog is not None:
            watchdog.stop(2 * STORE_SECONDS)
        settle(_STUCK_SECONDS)
        raise
    job = Job(control, watchdog, data, one_program=one_program)
    PRESENT.value = job
    atexit.register(job.leave)
    SambaAtexit.on_failure(job.fail)
    job.exit_code = watch_end(job.fail, lambda: job.calls)
    return job
