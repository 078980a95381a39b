"""Training where the data of some replicas ends before that of others: ``samba.session.join``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

from emulator.device import Device
from samba.distributed.replica_runs import Announcement, Ended
from samba.distributed.replicas import Replicas
from samba.session.hyperparams import random_state, set_random_state
from samba.session.turns import Turns


class Joins(Protocol):
    """A loaded program, as far as it trains with others."""

    replicas: Replicas

    @property
    def device(self) -> Device:
        """Its device."""
        ...

    @property
    def turns(self) -> Turns:
        """Who may use it."""
        ...

    def forget_calls(self) -> None:
        """Let the next run repeat no earlier one."""
        ...


@contextmanager
def joining(loaded: Joins, *, by_initial_size: bool, throws: bool) -> Iterator[None]:
    """Let ranks make different numbers of runs in the body, at whose end all are done.

    Args:
        loaded: The loaded program.
        by_initial_size: Whether a sum of gradients is divided by the number of all ranks, or of
            those that have data.
        throws: Whether it is an error that the data of some ranks ends early.

    Raises:
        NotJoinable: If an algorithm takes the place of the reductions.
        DataEnded: If data ends early, and that is an error.
        DataParallelError: If a rank is gone, or does something else.
    """
    replicas = loaded.replicas
    joint = replicas.new_joint(by_initial_size=by_initial_size, throws=throws)
    if joint is None:
        yield
        return
    with replicas.joined(joint):
        yield  # an error of the body ends this rank's part; the others notice
        with loaded.turns.held():
            shadowed = False
            while True:
                news = joint.next_run(random_state(loaded.device).tolist())
                if not isinstance(news, Announcement):
                    break
                replicas.shadow(news)
                shadowed = True
            _go_on_from(loaded, news)
            if shadowed:
                loaded.forget_calls()


def _go_on_from(loaded: Joins, ends: Sequence[Ended]) -> None:
    """Let random streams stand where they do on the ranks that made the most runs."""
    last = max(ends, key=lambda ended: ended.runs)  # the first of them
    state = torch.tensor(last.streams, dtype=torch.int64).reshape(-1, 2)
    if not torch.equal(state, random_state(loaded.device)):
        set_random_state(loaded.device, state)
