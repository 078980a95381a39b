"""``python -m bench gate --pef``: the gate over a user's PEF, and a test of the gate over either.

A time says something about another one only if both programs are fed alike. Sections are matched by
name, and the name alone does not do: where a layer was put in, ``fwd_5`` is another layer.

A test of the gate sees that it catches a planted slowdown, and is quiet otherwise.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

from bench.errors import (
    BadBase,
    BadSectionTimes,
    NothingToCompare,
    OtherProgram,
    ScriptFailed,
    UserGateUsage,
)
from bench.gate import (
    GateSettings,
    Measure,
    Samples,
    Side,
    Verdict,
    decide,
    measure_in,
    measure_sides,
    tree_of,
    write_verdicts,
)
from bench.measurement import FULL
from bench.process import ANSWER_SECONDS, case_of, worker_environment
from bench.section_times import compared, keep_base, load_section_times, opened_base
from pef_schema import PefError, Program, read_info, read_pef
from pef_schema.atomic import check_outputs
from pef_schema.printable import say_text
from pef_schema.program_facts import modules_of, owners, section_types


def gate_pef(args: Namespace, settings: GateSettings) -> int:
    """Gate a user's PEF, or keep it as a base.

    Args:
        args: What was parsed.
        settings: How to measure.

    Returns:
        The exit code.

    Raises:
        BenchError: If something cannot be measured or compared.
        PefError: If the PEF is missing or bad, or an output cannot be written.
    """
    if args.model:
        raise UserGateUsage("--model is for the bench's own cases and does not go with --pef")
    if (args.keep is None) == (args.base is None):
        raise UserGateUsage("with --pef, give --base to compare with a base, or --keep to make one")
    if args.keep is not None and (args.json is not None or args.smaller_is_better is not None):
        raise UserGateUsage("--keep compares nothing: --json and --smaller-is-better need --base")
    if args.base_script is not None and (args.script is None or args.base is None):
        raise UserGateUsage("--base-script needs --script and --base")
    read_info(str(args.pef))  # a bad file is told as such, and not by a process that fails
    check_outputs((args.keep, args.json, args.smaller_is_better))
    return _keep(args, settings) if args.base is None else _judge(args, settings)


def _keep(args: Namespace, settings: GateSettings) -> int:
    measure = measure_of(args.pef, args.pef, settings, (args.script, args.script))
    samples = measure(args.pef.name, settings.processes)
    keep_base(args.keep, args.pef, {name: [*one, *two] for name, (one, two) in samples.items()})
    say_text(f"kept: {args.keep}, {args.pef.name} with {len(set(samples) - {FULL})} sections")
    return 0


def _judge(args: Namespace, settings: GateSettings) -> int:
    with opened_base(Path(args.base)) as base:
        left_out = left_out_of_files(base.pef, args.pef, name=args.base)
        scripts = args.base_script or args.script, args.script
        measure = measure_of(base.pef, args.pef, settings, scripts)

        def of_pairs(case: str, processes: int) -> Samples:
            samples = measure(case, processes)
            samples = {name: both for name, both in samples.items() if name not in left_out}
            if not samples:
                raise NothingToCompare(
                    f"{args.pef} and {args.base} have no section in common. Compile both with the "
                    "same options, or leave out --script: then the full run is compared, too"
                )
            return samples

        verdict = decide(args.pef.name, of_pairs, settings.processes)
    say_text(
        "\n".join(
            [str(verdict), *(f"  {name}: {why}; not compared" for name, why in left_out.items())]
        )
    )
    for comparison in verdict.first:
        if comparison.name == FULL and (line := base.since_then(comparison.base)):
            say_text(line)
    write_verdicts(args, [verdict], base=args.base, left_out=left_out)
    return int(bool(verdict.slower))


def measure_of(
    base: Path,
    head: Path,
    settings: GateSettings,
    scripts: tuple[str | None, str | None] = (None, None),
) -> Measure:
    """The function that measures two PEFs.

    Args:
        base, head: The PEFs.
        settings: The settings of the measurement.
        scripts: The user's scripts of base and head with their options; None to run the PEFs by
            themselves.

    Returns:
        What the gate's ``decide`` asks.

    Raises:
        UserGateUsage: If there is no such script.
    """
    old, new = scripts
    if old is not None and new is not None:
        words = _words(old), _words(new)
        return lambda _, processes: measure_script(words, (base, head), settings, processes)

    def measure(_: str, processes: int) -> Samples:
        with tree_of(None) as tree:
            sides = Side(case=case_of(base), tree=tree), Side(case=case_of(head), tree=tree)
            return measure_sides(sides, settings, processes)

    return measure


def _words(script: str) -> list[str]:
    try:
        words = shlex.split(script)
    except ValueError as error:
        raise UserGateUsage(f"--script {script!r}: {error}") from error
    if not words or not Path(words[0]).is_file():
        name = words[0] if words else ""
        raise UserGateUsage(f"--script: there is no file {name!r}, expected a Python script")
    return words


def compare_times(base: Path, head: Path, *, across_processors: bool = False) -> int:
    """Print two files of section times side by side.

    Args:
        base, head: Reports of ``measure-sections``, or kept bases.
        across_processors: Whether they may be of two processors; nothing is called slower then.

    Returns:
        1 if a section counts as slower, else 0.

    Raises:
        BenchError: If they are something else, or of two processors.
    """
    comparisons, others = compared(base, head, across_processors=across_processors)
    for one in comparisons:
        say_text(str(one))
    for line in others:
        say_text(line)
    if across_processors:
        say_text("ACROSS PROCESSORS: ratios compare machines and do not set the exit code")
        return 0
    say_text(
        "This verdict is weak: the two sides were measured at different times, under whatever "
        "other load there was. `python -m bench gate --pef` measures both sides in turns."
    )
    return int(any(one.slower for one in comparisons))


def left_out_of_files(base: Path, head: Path, *, name: str) -> dict[str, str]:
    """Match the sections of two PEFs.

    Args:
        base, head: The PEFs.
        name: What base is called in errors.

    Returns:
        Why a section is not to be compared, by name: of base, of head or of both.

    Raises:
        BadBase: If base cannot be read.
        PefError: If head cannot.
        OtherProgram: If they are not fed alike.
    """
    try:
        before = read_pef(str(base))
    except PefError as error:
        raise BadBase(path=name, reason=error.what) from error
    return left_out_of(before, read_pef(str(head)), name=name, head_name=str(head))


def left_out_of(base: Program, head: Program, *, name: str, head_name: str) -> dict[str, str]:
    """Match the sections of two programs.

    Args:
        base, head: The programs.
        name, head_name: What they are called in errors.

    Returns:
        Why a section is not to be compared, by name: of base, of head or of both.

    Raises:
        OtherProgram: If they are not fed alike, or one trains and the other does not.
    """
    before, after = _use_and_inputs(base), _use_and_inputs(head)
    for what in dict.fromkeys((*before, *after)):
        if before.get(what) != after.get(what):
            raise OtherProgram(
                base=name,
                head=head_name,
                what=what,
                found=after.get(what, "missing"),
                wanted=before.get(what, "missing"),
            )
    old, new = _sections(base), _sections(head)
    left_out = {
        section: "only in base" if section not in new else "only in head"
        for section in dict.fromkeys((*old, *new))
        if (section in old) != (section in new)
    }
    left_out |= {
        section: "other modules than in base"
        for section, of in new.items()
        if section in old and old[section] != of
    }
    untimed = {s.name for s in head.sections} - set(new)
    left_out |= dict.fromkeys(sorted(untimed), "not in the first schedule, which alone is timed")
    return left_out


def _use_and_inputs(program: Program) -> dict[str, str]:
    """What a program is for and what it is fed, in words."""
    facts = {"use": "inference" if program.inference else "training"}
    for graph in program.graphs:
        for index in graph.inputs:
            value = graph.values[index]
            facts[f"input {value.name} of {graph.name}"] = (
                f"{value.dtype.name.lower()} {list(value.shape)}"
            )
    return facts


def _sections(program: Program) -> dict[str, tuple[str, frozenset[str]]]:
    """Type and modules by section of the full run."""
    owned = owners(program)
    sections = [program.sections[call.section] for call in program.schedules[0].calls]
    return {s.name: (section_types(s), frozenset(modules_of(program, s, owned))) for s in sections}


def measure_script(
    scripts: tuple[Sequence[str], Sequence[str]],
    pefs: tuple[Path, Path],
    settings: GateSettings,
    processes: int,
) -> Samples:
    """Time the sections of two PEFs by scripts, in turns.

    Args:
        scripts: Base's and head's script with its own options; ``measure-sections`` and its
            options are put behind its name.
        pefs: Base and head.
        settings: How; ``rounds`` passes over the schedule in each process.
        processes: Processes of each side.

    Returns:
        Samples of the sections that both have, process after process.

    Raises:
        ScriptFailed: If a script ends with another code than 0.
        BadSectionTimes: If it writes no times.
    """
    samples: dict[str, tuple[list[float], list[float]]] = {}
    for turn in range(processes):
        times: dict[int, dict[str, list[float]]] = {}
        # Neither side may always come first.
        for side in (0, 1) if turn % 2 else (1, 0):
            times[side] = _run(scripts[side], pefs[side], settings)
        for name in times[1]:
            if name in times[0]:
                # A section may be called more often on one side; samples belong together in pairs.
                count = min(len(times[0][name]), len(times[1][name]))
                base, head = samples.setdefault(name, ([], []))
                base += times[0][name][:count]
                head += times[1][name][:count]
    return samples


def _run(script: Sequence[str], pef: Path, settings: GateSettings) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory(prefix="bench-script-") as folder:
        report = Path(folder) / "sections.json"
        command = [
            *(sys.executable, script[0], "measure-sections"),
            *(f"--pef={pef}", f"--num-iterations={settings.rounds}"),
            # Scripts pass one of the two names on.
            *(f"--bench-report-json={report}", f"--json={report}"),
            *script[1:],
        ]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=ANSWER_SECONDS,
                env=worker_environment(settings.threads),
            )
        except subprocess.TimeoutExpired:
            raise ScriptFailed(
                script=script[0], reason=f"it did not end in {ANSWER_SECONDS:g} s"
            ) from None
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["it printed nothing"]
            raise ScriptFailed(script=script[0], reason=f"code {done.returncode}: {lines[-1]}")
        if not report.exists():
            raise BadSectionTimes(
                path=script[0],
                reason="it ended without a report: does it pass --bench-report-json on?",
            )
        return {name: list(t) for name, t in load_section_times(report).seconds.items()}


MakeMeasure = Callable[[GateSettings], AbstractContextManager[Measure]]
"""What measures identical code on both sides, while the context lasts."""


@contextmanager
def of_one_tree(settings: GateSettings) -> Generator[Measure, None, None]:
    """Measure cases of the bench, as the code is now."""
    with tree_of(None) as tree:
        yield measure_in(tree, tree, settings)


def _said(verdict: Verdict) -> str:
    if verdict.slower:
        return f"SLOWER: {', '.join(verdict.slower)}"
    return "suspected, not confirmed" if verdict.together else "quiet"


def quiet_runs(
    count: int, settings: GateSettings, case: str, make: MakeMeasure, tell: Callable[[str], None]
) -> bool:
    """Run the gate several times on identical code.

    Args:
        count: How many times.
        settings: How to measure.
        case: Name of the case.
        make: Gives a function that measures it.
        tell: Receives a line on each time.

    Returns:
        Whether the gate found no difference in any of them.
    """
    tripped = 0
    with make(settings) as measure:
        for number in range(1, count + 1):
            start = time.perf_counter()
            verdict = decide(case, measure, settings.processes)
            tripped += bool(verdict.slower)
            worst = max(verdict.first, key=lambda c: c.ratio)
            tell(
                f"run {number} of {count}: {_said(verdict)}; highest ratio {worst.ratio:.3f} "
                f"({worst.name}, p {worst.p_slower:.1e}); {time.perf_counter() - start:.0f} s"
            )
    tell(f"{count} runs of identical code: the gate tripped {tripped} times")
    return tripped == 0


def planted(
    section: str,
    factor: float,
    settings: GateSettings,
    case: str,
    make: MakeMeasure,
    tell: Callable[[str], None],
) -> bool:
    """Run the gate on identical code with one section of head made slower.

    Args:
        section: Name of the section; the first one if empty.
        factor: How many times as long it takes then.
        settings, case, make, tell: As for :func:`quiet_runs`.

    Returns:
        Whether the gate named that section and no other.
    """
    if not section:
        with make(replace(settings, rounds=1)) as measure:
            section = next(name for name in measure(case, 1) if name != FULL)
    with make(replace(settings, plants={section: factor})) as measure:
        verdict = decide(case, measure, settings.processes)
    tell(str(verdict))
    caught = verdict.slower == (section,)
    outcome = "finds" if caught else "does NOT find"
    tell(f"the gate {outcome} that section {section} was made {factor:g} times as slow")
    return caught
