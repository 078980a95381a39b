"""Cables of rehearsed hosts: network interfaces whose frames pass through this process.

What ``tc netem`` would do to a cable is done here, so that the kernel needs no module but ``tun``.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import itertools
import os
import random
import select
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.processes import came, joined

_TUNSETIFF, _TUNSETCARRIER = 0x400454CA, 0x400454E2
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_CLONE_NEWNET = 0x40000000
_FRAME = 65536
_LONGEST_QUEUE = 20_000
"""Frames under way to one host; what comes beyond is lost, as in a router."""
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """What becomes of each frame.

    Args:
        delay: Seconds that it is under way.
        loss: Probability that it does not arrive.
        rate: Bits per second to one host, 0 for no limit.
        cut: Whether nothing arrives at all.
    """

    delay: float = 0.0
    loss: float = 0.0
    rate: float = 0.0
    cut: bool = False


class Hub:
    """Interfaces of the same name, one in each network namespace, joined by a cable each.

    Every frame goes to all other hosts. Use it as a context: at its end the interfaces are gone.

    Args:
        name: Name of the interfaces.
        spaces: Files of the network namespaces, such as ``/proc/1/ns/net``.

    Attributes:
        quality: What becomes of frames; may be set at any time.
        frames: How many have arrived.
        lost: How many have not.
    """

    def __init__(self, name: str, spaces: Sequence[str]) -> None:
        self.quality = Quality()
        self.frames = self.lost = 0
        self._name, self._spaces = name, spaces
        self._random = random.Random(7)
        self._ports: list[int] = []
        self._failure: BaseException | None = None
        self._ready, self._stopping = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name=f"hub-{name}", daemon=True)

    def __enter__(self) -> Hub:
        self._thread.start()
        came(self._ready)
        if self._failure is not None:
            joined(self._thread)
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        joined(self._thread)

    def unplug(self, number: int) -> None:
        """Take the carrier from a host's interface: nothing comes or goes, and nobody is told."""
        fcntl.ioctl(self._ports[number], _TUNSETCARRIER, struct.pack("i", 0))

    # -- the thread: only it is in the other namespaces -----------------------

    def _run(self) -> None:
        try:
            self._ports += [self._open(space) for space in self._spaces]
        except OSError as error:
            self._failure = error
        self._ready.set()
        try:
            if self._failure is None:
                self._carry()
        finally:
            for port in self._ports:
                os.close(port)

    def _open(self, space: str) -> int:
        libc = ctypes.CDLL(None, use_errno=True)
        with open(space) as file:
            if libc.setns(file.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"setns to {space}")
        port = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        request = struct.pack("16sH22x", self._name.encode(), _IFF_TAP | _IFF_NO_PI)
        fcntl.ioctl(port, _TUNSETIFF, request)
        return port

    def _carry(self) -> None:
        order = itertools.count()
        under_way: list[tuple[float, int, int, bytes]] = []
        free_at = dict.fromkeys(self._ports, 0.0)
        while not self._stopping:
            now = time.monotonic()
            while under_way and under_way[0][0] <= now:
                _, _, port, frame = heapq.heappop(under_way)
                self._deliver(port, frame)
            wait = min(_LOOK_SECONDS, under_way[0][0] - now) if under_way else _LOOK_SECONDS
            readable, _, _ = select.select(self._ports, [], [], max(0.0, wait))
            for source in readable:
                try:
                    frame = os.read(source, _FRAME)
                except OSError:
                    continue  # its interface is down
                now, quality = time.monotonic(), self.quality
                for port in self._ports:
                    if port == source:
                        continue
                    full = len(under_way) > _LONGEST_QUEUE
                    if quality.cut or full or self._random.random() < quality.loss:
                        self.lost += 1
                        continue
                    sent = max(now, free_at[port])
                    if quality.rate:
                        sent = free_at[port] = sent + 8 * len(frame) / quality.rate
                    heapq.heappush(under_way, (sent + quality.delay, next(order), port, frame))

    def _deliver(self, port: int, frame: bytes) -> None:
        try:
            os.write(port, frame)
            self.frames += 1
        except OSError:
            self.lost += 1  # nobody listens at the other end
