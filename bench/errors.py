"""Errors of benchmarks."""

from __future__ import annotations

from pef_schema.errors import SambaError


class BenchError(SambaError):
    """A benchmark could not be run, or its contenders do not compute the same."""


class UserGateUsage(BenchError):
    """Options that do not go together, or that name nothing."""


class BadFile(BenchError):
    """A file holds something else than what is wanted.

    Args:
        path: The file.
        reason: What is wrong with it.
    """

    _named, _wanted = "", ""

    def __init__(self, *, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{self._named}{path}: {reason}. {self._wanted}")


class BadResults(BadFile):
    """A file does not hold results of a benchmark."""

    _wanted = (
        "`python -m bench run --json FILE` writes results; a script's measure-sections "
        "--bench-report-json FILE writes section times"
    )


class BadBase(BadFile):
    """What a user's PEF is to be compared with is neither a PEF nor a kept base."""

    _named = "--base "
    _wanted = (
        "It has to be a PEF, or a file that `python -m bench gate --pef PEF --keep FILE` wrote"
    )


class BadSectionTimes(BadFile):
    """A file does not hold section times."""

    _wanted = (
        "measure-sections --bench-report-json FILE and `python -m bench gate --pef PEF --keep "
        "FILE` write section times"
    )


class TwoProcessors(BenchError):
    """The results are of two processors, which cannot be compared.

    Args:
        names: Where the two come from.
        processors: What each was measured on.
    """

    _why = (
        "ratios of two processors say nothing about the code. Measure both on one, let `python -m "
        "bench table` print them side by side, or pass --across-processors, which the table then "
        "mentions"
    )

    def __init__(self, *, names: tuple[str, str], processors: tuple[str, str]) -> None:
        self.names, self.processors = names, processors
        super().__init__(
            f"{names[0]} was measured on {processors[0]}, {names[1]} on {processors[1]}: "
            + self._why.format(base=names[0])
        )


class TimesOfTwoProcessors(TwoProcessors):
    """The section times are of two processors, which cannot be compared."""

    _why = (
        "such ratios say nothing about the program. `python -m bench gate --pef PEF --base {base}` "
        "measures both here; or give --across-processors"
    )


class WorkerFailed(BenchError):
    """The process of a contender ended or reported an error.

    Args:
        case: Name of the case.
        contender: Name of the contender.
        reason: Last lines of what it said.
    """

    def __init__(self, *, case: str, contender: str, reason: str) -> None:
        self.case, self.contender, self.reason = case, contender, reason
        super().__init__(f"{contender} failed on {case}: {reason}")


class LossesDiffer(BenchError):
    """Two contenders disagree, so that comparing their times would mean nothing.

    Args:
        case: Name of the case.
        losses: First losses of each contender.
    """

    def __init__(self, *, case: str, losses: dict[str, list[float]]) -> None:
        self.case, self.losses = case, losses
        shown = "; ".join(f"{name}: {values}" for name, values in losses.items())
        super().__init__(
            f"the contenders' losses on {case} differ: {shown}. "
            "They must compute the same step; fix the one that differs from eager"
        )


class StatesDiffer(BenchError):
    """Replicas or modes that must come to the same weights did not."""


class OtherProgram(BenchError):
    """Two PEFs are of programs whose times cannot be compared.

    Args:
        base, head: The two.
        what: What differs.
        found: What head has.
        wanted: What base has.
    """

    def __init__(self, *, base: str, head: str, what: str, found: str, wanted: str) -> None:
        self.base, self.head, self.what, self.found, self.wanted = base, head, what, found, wanted
        super().__init__(
            f"{head} is another program than {base}: {what} is {found}, in base {wanted}. Compile "
            "both for the same inputs, or keep a new base; `python -m samba diff` shows the rest"
        )


class NothingToCompare(BenchError):
    """Two PEFs have no section in common, and a script times nothing else."""


class ScriptFailed(BenchError):
    """A user's script did not measure its sections.

    Args:
        script: The script.
        reason: What it said.
    """

    def __init__(self, *, script: str, reason: str) -> None:
        self.script, self.reason = script, reason
        super().__init__(
            f"{script} measure-sections: {reason}. A script measures PEFs of its own model; give "
            "--base-script if base had another script"
        )


class NoRevision(BenchError):
    """Git does not know a revision, or cannot check it out."""


class UnknownSection(BenchError):
    """No case has the section in which a slowdown was requested."""
