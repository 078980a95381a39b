"""Watch over replicas: how far each is in its program, and which of them are gone.

Every replica tells the store twice a second how far it is. The others look, so that an error
can name the rank that is missing and not only the connection that broke.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from emulator.replicas.comm.errors import OutOfStep, PeerLost, name_ranks
from samba.distributed.addresses import namespace
from samba.distributed.stores import Store

_BEAT_SECONDS = 0.5
_BEAT_RANKS = 32
"""Beyond so many ranks they beat more slowly: what the store serves grows with their square."""
_SILENT_BEATS = 5
_GRACE_SECONDS = 1.5
"""Seconds for which the last message of a rank that left may still be under way."""
_BLAME_SECONDS = 3.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """The last sign that a rank gave of itself.

    Args:
        beat: Counts up.
        step: Data parallel run that it is in or has finished; 0 before the first.
        bucket: Bucket that it last began to reduce in that run, -1 before the first.
        host: Name of its host.
        space: Where its process id is valid.
        pid: Its process id.
        state: ``"running"``, ``"left"`` (its program has ended) or ``"failed"``.
        reason: Why it left or failed.
        blames: Ranks that made it fail.
        call: Number of what it last began to do together with the others.
        doing: What that was.
    """

    beat: int = 0
    step: int = 0
    bucket: int = -1
    host: str = ""
    space: str = ""
    pid: int = 0
    state: str = "running"
    reason: str = ""
    blames: tuple[int, ...] = ()
    call: int = 0
    doing: str = ""

    @property
    def where(self) -> str:
        """The place where the rank was seen last, in words."""
        at = f"step {self.step}" if self.step else "the time before step 1"
        bucket = f", bucket {self.bucket}" if self.bucket >= 0 else ""
        return f"last seen at {at}{bucket}, on host {self.host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """The ranks at fault for a collective that failed.

    Args:
        ranks: The ranks, as far as they are known.
        reason: What is known about them.
    """

    ranks: tuple[int, ...]
    reason: str


class Watchdog:
    """Tells the others of this rank, and watches them.

    Args:
        store: A store client that nobody else uses: a server that hangs would block them too.
        rank: This rank.
        size: How many ranks there are.
        keeper: The rank that serves the store, -1 if none does.
    """

    def __init__(self, store: Store, *, rank: int, size: int, keeper: int) -> None:
        self._store, self._rank, self._size, self._keeper = store, rank, size, keeper
        self.interval = _BEAT_SECONDS * max(1.0, size / _BEAT_RANKS)
        self._mine = Sign(
            host=socket.gethostname(),
            space=namespace("pid") or secrets.token_hex(8),
            pid=os.getpid(),
        )
        self._lock = threading.Lock()
        self._beats = 0
        self._others = [r for r in range(size) if r != rank]
        self._seen: dict[int, tuple[float, Sign]] = {}
        self._gone: dict[int, float] = {}
        self._reached = time.monotonic()
        self._told = threading.Condition()
        self._wanted = self._done = 0
        self._wake = threading.Event()
        self._stopping = False
        self._woken = 0.0
        self._thread = threading.Thread(target=self._beat, name="samba-watchdog", daemon=True)
        self._publish()

    def start(self) -> None:
        """Begin to watch; every rank has made its watchdog by now."""
        self._look()
        self._thread.start()

    def stop(self, seconds: float = 1) -> bool:
        """End the thread.

        Args:
            seconds: How long to wait for it.

        Returns:
            Whether it has ended, and does not hang in a store that does not answer.
        """
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    # -- of this rank -------------------------------------------------------

    def at(self, step: int, bucket: int) -> None:
        """Note how far this rank is."""
        with self._lock:
            self._mine = replace(self._mine, step=step, bucket=bucket)
        self._soon()

    def _soon(self) -> None:
        now = time.monotonic()
        if now - self._woken > self.interval / 5:
            self._woken = now
            self._wake.set()

    def enter(self, call: int, doing: str) -> None:
        """Note what this rank begins to do together with the others.

        Args:
            call: How many such things it has begun.
            doing: What it is; all ranks say the same of the same thing.
        """
        with self._lock:
            self._mine = replace(self._mine, call=call, doing=doing)
        self._soon()

    @property
    def step(self) -> int:
        """The data parallel run that this rank is in or has finished; 0 before the first."""
        return self._mine.step

    def tell(self, state: str, reason: str, blames: Sequence[int] = (), *, wait: float = 1) -> None:
        """Tell the others that this rank is no longer running.

        Args:
            state: ``"left"`` or ``"failed"``.
            reason: Why.
            blames: Ranks that made it fail.
            wait: Seconds to wait until the store has it.
        """
        with self._lock:
            if self._mine.state != "running":
                return
            self._mine = replace(self._mine, state=state, reason=reason, blames=tuple(blames))
        self.look_again(wait)

    def look_again(self, wait: float = 1) -> None:
        """Tell the others how far this rank is, and see how far they are, now.

        Args:
            wait: Seconds to wait for the store.
        """
        with self._told:
            self._wanted = beat = self._done + 2  # the beat under way may have begun before
            self._wake.set()
            if not self.is_cut_off():  # each wait for a store that does not answer is lost
                self._told.wait_for(lambda: self._done >= beat, wait)

    # -- of the others ------------------------------------------------------

    def check(self, operation: str) -> None:
        """Raise if a rank that this one waits for will not come.

        Raises:
            OutOfStep: If another rank is to do something else at this point.
            PeerLost: If a rank has ended, or has told that it failed.
        """
        if (error := self.out_of_step(operation)) is not None:
            raise error
        now = time.monotonic()
        known = self._known()
        if known is None:
            self._gone.clear()
            return
        since = min(self._gone.setdefault(rank, now) for rank in known.ranks)
        if now - since >= _GRACE_SECONDS:
            raise PeerLost(operation=operation, reason=known.reason, ranks=known.ranks)

    def blame(self, seconds: float = _BLAME_SECONDS) -> Blame:
        """Find out who is at fault for a collective that failed.

        Args:
            seconds: How long to look, if it does not show at once.
        """
        end = time.monotonic() + seconds
        while True:
            blame = self._known() or self._silent()
            if blame is not None and seconds:
                self.look_again()  # it may have told why, just before it ended
                return self._known() or blame
            if blame is not None:
                return blame
            if time.monotonic() >= end:
                break
            time.sleep(0.1)
        if len(self._others) == 1:
            rank = self._others[0]
            return Blame(ranks=(rank,), reason=f"rank {rank} is alive ({self.where(rank)})")
        behind = self._behind()
        return Blame(ranks=behind, reason=self._places(behind or tuple(self._others)))

    def where(self, rank: int) -> str:
        """How far another rank came, in words."""
        entry = self._seen.get(rank)
        return "never seen" if entry is None else entry[1].where

    def ended_early(self, ranks: Sequence[int]) -> bool:
        """Whether ranks are fine, but have not begun what this rank is in.

        Args:
            ranks: Ranks that did not come.
        """
        signs = [self._seen[rank][1] for rank in ranks if rank in self._seen]
        return any(self._is_fine(s) and s.call < self._mine.call for s in signs)

    def _is_fine(self, sign: Sign) -> bool:
        """Whether a rank runs, has left, or failed only because it waited for this one."""
        if sign.state == "running":
            return not self._is_dead(sign)
        return sign.state == "left" or self._rank in sign.blames

    def ahead(self) -> dict[int, str]:
        """Ranks that are in something that this rank has not begun, and what that is."""
        return {r: s.doing for r, (_, s) in self._seen.items() if s.call > self._mine.call}

    def is_cut_off(self) -> bool:
        """Whether the store does not answer any more."""
        return time.monotonic() - self._reached > _SILENT_BEATS * self.interval

    def out_of_step(self, operation: str) -> OutOfStep | None:
        """An error that names ranks which are to do something else at this point.

        Args:
            operation: What this rank is about to do.

        Returns:
            The error; None if there are no such ranks.
        """
        mine = self._mine
        signs = ((rank, sign) for rank, (_, sign) in self._seen.items())
        others = {r: s for r, s in signs if s.call == mine.call and s.doing != mine.doing}
        if not others:
            return None
        doing = {rank: sign.doing for rank, sign in others.items()}
        steps = {rank: sign.step for rank, sign in others.items()}
        return OutOfStep(operation=operation, doing=doing, steps=steps)

    def all_ended(self) -> bool:
        """Whether no other rank is running."""
        return all(
            rank in self._seen
            and (self._seen[rank][1].state != "running" or self._is_dead(self._seen[rank][1]))
            for rank in self._others
        )

    def any_failed(self) -> bool:
        """Whether a rank has failed, or died."""
        return any(
            s.state == "failed" or (s.state == "running" and self._is_dead(s))
            for _, s in self._seen.values()
        )

    def _known(self) -> Blame | None:
        """Ranks that are known not to come any more."""
        signs = {rank: sign for rank, (_, sign) in self._seen.items()}
        for sign in signs.values():  # somebody has found out before
            # Who could not reach this rank either is on the other side of what lies between them.
            others = () if self._rank in sign.blames else sign.blames
            if sign.state == "failed" and others:
                return Blame(ranks=others, reason=f"{sign.reason} ({self._places(others)})")
        for kind, text in (("failed", "it failed"), ("left", "its program has ended")):
            ranks = tuple(r for r, sign in signs.items() if sign.state == kind)
            if ranks:
                reasons = "; ".join(dict.fromkeys(signs[r].reason for r in ranks))
                return Blame(ranks=ranks, reason=f"{text}: {reasons} ({self._places(ranks)})")
        dead = tuple(r for r, sign in signs.items() if self._is_dead(sign))
        if dead:
            return Blame(ranks=dead, reason=f"its process is gone ({self._places(dead)})")
        return None

    def _silent(self) -> Blame | None:
        """Ranks that have given no sign of life for some time."""
        now, patience = time.monotonic(), _SILENT_BEATS * self.interval
        if now - self._reached > patience:
            if self._keeper >= 0 and self._keeper != self._rank:
                keeper = self._keeper
                return Blame(
                    ranks=(keeper,),
                    reason=f"it does not answer, or its host does not ({self._places((keeper,))})",
                )
            return None
        silent = tuple(r for r, (since, _) in self._seen.items() if now - since > patience)
        if not silent:
            return None
        longest = max(now - self._seen[r][0] for r in silent)
        return Blame(
            ranks=silent,
            reason=f"no sign of life for {longest:.0f} s ({self._places(silent)})",
        )

    def _behind(self) -> tuple[int, ...]:
        mine = (self._mine.step, self._mine.bucket)
        return tuple(r for r, (_, sign) in self._seen.items() if (sign.step, sign.bucket) < mine)

    def _places(self, ranks: Sequence[int]) -> str:
        if len(ranks) == 1:
            return self.where(ranks[0])
        return "; ".join(f"{name_ranks([r])} {self.where(r)}" for r in ranks)

    def _is_dead(self, sign: Sign) -> bool:
        return sign.space == self._mine.space and not _is_running(sign.pid)

    # -- the thread ---------------------------------------------------------

    def _beat(self) -> None:
        while not self._stopping:
            self._wake.wait(self.interval)
            self._wake.clear()
            with contextlib.suppress(Exception):  # the host of the store may be gone; others see it
                self._publish()
                self._look()
            with self._told:
                self._done += 1
                if self._done < self._wanted:
                    self._wake.set()
                self._told.notify_all()

    def _publish(self) -> None:
        self._beats += 1
        sign = replace(self._mine, beat=self._beats)
        fields = {name: getattr(sign, name) for name in Sign.__dataclass_fields__}
        self._store.set(f"sign/{self._rank}", json.dumps(fields))

    def _look(self) -> None:
        texts = self._store.multi_get([f"sign/{r}" for r in self._others])
        now = self._reached = time.monotonic()
        for rank, text in zip(self._others, texts, strict=True):
            sign = _sign(text)
            if sign is None:
                continue
            before = self._seen.get(rank)
            if before is None or before[1].beat != sign.beat:
                self._seen[rank] = (now, sign)


def _sign(text: bytes) -> Sign | None:
    """A sign of life; None of what no rank has written: that one then gives no sign."""
    try:
        fields = json.loads(text)
        return Sign(**{**fields, "blames": tuple(fields["blames"])})
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in "ZX"
