"""Errors of communication between replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from signal import Signals

from pef_schema.errors import SambaError


class DataParallelError(SambaError, RuntimeError):
    """Replicas cannot go on together.

    Attributes:
        ranks: The ranks at fault, as far as they are known.
    """

    def __init__(self, text: str, *, ranks: Sequence[int] = ()) -> None:
        self.ranks = tuple(ranks)
        super().__init__(text)


class CollectiveTimeout(DataParallelError):
    """A rank did not take part in a collective before its deadline.

    Attributes:
        operation: The collective.
        seconds: The deadline.
        reason: What is known about the rank; empty if nothing is.
    """

    def __init__(
        self, *, operation: str, seconds: float, ranks: Sequence[int] = (), reason: str = ""
    ) -> None:
        self.operation, self.seconds, self.reason = operation, seconds, reason
        super().__init__(
            f"{operation}: no answer from {name_ranks(ranks)} within {seconds:g} s"
            + (f": {reason}" if reason else ""),
            ranks=ranks,
        )


class PeerLost(DataParallelError):
    """A rank ended while others still counted on it.

    Attributes:
        operation: What they were about to do together.
        reason: What is known about its end.
    """

    def __init__(self, *, operation: str, reason: str, ranks: Sequence[int] = ()) -> None:
        self.operation, self.reason = operation, reason
        verb = "are" if len(ranks) > 1 else "is"
        super().__init__(f"{operation}: {name_ranks(ranks)} {verb} gone: {reason}", ranks=ranks)


class StepAbandoned(DataParallelError, KeyboardInterrupt):
    """A second signal came while a step waited for other ranks: the step is given up half-way.

    It is a ``KeyboardInterrupt`` too, so that scripts that save after Ctrl-C save after this one.

    Attributes:
        operation: The operation that waited.
        signal: The signal.
        reason: What is known about the ranks that did not come; empty if nothing is.
    """

    def __init__(
        self, *, operation: str, signal: int, ranks: Sequence[int] = (), reason: str = ""
    ) -> None:
        self.operation, self.signal, self.reason = operation, signal, reason
        super().__init__(
            f"{operation}: given up, because a second {Signals(signal).name} came while it waited "
            f"for {name_ranks(ranks)}" + (f": {reason}" if reason else ""),
            ranks=ranks,
        )


class CollectiveMismatch(DataParallelError):
    """Ranks called different collectives, or the same with other buffers.

    Attributes:
        calls: What each rank called, by rank.
    """

    def __init__(self, *, calls: Sequence[str]) -> None:
        self.calls = tuple(calls)
        lines = "".join(f"\n  rank {rank}: {call}" for rank, call in enumerate(calls))
        odd = [rank for rank, call in enumerate(calls) if call != calls[0]]
        super().__init__(
            f"ranks do not call the same collective:{lines}\n"
            "All of them must run the same PEF with the same arguments.",
            ranks=odd,
        )


class Disagreement(DataParallelError):
    """Ranks are about to train different things.

    Attributes:
        facts: What each rank has, by the name of the fact; only those that differ.
    """

    def __init__(
        self,
        *,
        when: str,
        facts: Mapping[str, Sequence[str]],
        who: str = "replicas",
        advice: str = "All of them must run the same PEF with the same arguments.",
    ) -> None:
        self.facts = {name: tuple(values) for name, values in facts.items()}
        lines, odd = "", set[int]()
        for name, values in self.facts.items():
            common = max(dict.fromkeys(values), key=values.count)
            for value in dict.fromkeys(values):
                ranks = [r for r, v in enumerate(values) if v == value]
                lines += f"\n  {name}: {name_ranks(ranks)}: {value}"
                odd.update(ranks if value != common else ())
        super().__init__(
            f"{when}: the {who} differ.{lines}\n{advice}",
            ranks=sorted(odd),
        )


class OutOfStep(DataParallelError):
    """Ranks are at different places of their programs, and each waits for the others.

    Attributes:
        operation: What this rank is about to do.
        doing: What others do, by rank.
        steps: How many data parallel runs they have made or begun, by rank.
    """

    def __init__(
        self,
        *,
        operation: str,
        doing: Mapping[int, str],
        steps: Mapping[int, int] | None = None,
        advice: str = "",
    ) -> None:
        self.operation, self.doing, self.steps = operation, dict(doing), dict(steps or {})
        places = "; ".join(
            f"rank {rank} is in {what}"
            + (f", with {self.steps[rank]} runs begun" if rank in self.steps else "")
            for rank, what in self.doing.items()
        )
        super().__init__(
            f"{operation}: the ranks are out of step: {places}. {advice}".rstrip(),
            ranks=tuple(self.doing),
        )


class DataEnded(DataParallelError):
    """Data of some ranks ended before those of others, which the script asked to be an error.

    Attributes:
        steps: How many runs the ranks made whose data ended, by rank.
    """

    def __init__(self, *, steps: Mapping[int, int]) -> None:
        self.steps = dict(steps)
        ends = "; ".join(f"rank {rank} after {count} runs" for rank, count in self.steps.items())
        super().__init__(
            f"samba.session.join(throw_on_early_termination=True): data ended early: {ends}. All "
            "ranks stop.",
            ranks=tuple(self.steps),
        )


def name_ranks(ranks: Sequence[int]) -> str:
    """Ranks in words.

    Example:
        >>> name_ranks([1]), name_ranks([0, 2]), name_ranks([])
        ('rank 1', 'ranks 0, 2', 'some rank')
    """
    if not ranks:
        return "some rank"
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
