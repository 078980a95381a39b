"""Real launchers start real replicas, which meet and leave as they should."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from samba.distributed import launch_command
from tests import warm
from tests.processes import SECONDS, finished, line_of, said
from tests.samba.distributed.processes import (
    ROOT,
    clean_environment,
    in_place,
    launch,
    mpirun,
    torchrun,
)

MEETS = """
import os, sys
from samba.distributed import job
import torch.distributed as dist
from torch.utils.data.distributed import DistributedSampler
from samba.utils.argparser import parse_app_args

args = parse_app_args(["run", "--data-parallel", "--pef=x.pef"])
found = job.current()
assert dist.is_initialized()
assert sorted(int(r) for r in found.control.gather_bytes(str(found.rank).encode())) == [
    *range(found.size)
]
names = set(found.control.gather_bytes(os.environ["JOB"].encode()))
assert len(names) == 1, names
sampler = DistributedSampler(range(8), shuffle=False)
line = f"rank {found.rank} of {found.size} has {' '.join(map(str, sampler))}\\n"
os.write(1, line.encode())  # in one piece: the others write to the same pipe
"""


def script(folder: Path, text: str = MEETS) -> str:
    path = folder / "script.py"
    path.write_text(text)
    return str(path)


def run(command: list[str], seconds: float = SECONDS, *, real: bool = False) -> str:
    """Run a command; returns what it printed.

    Its replicas are forked from a process that has the libraries, unless they are to be real.
    """
    env = clean_environment(JOB="one", CCL_TIMEOUT="60", **({} if real else warm.for_children()))
    command = command if real else in_place(command)
    run_to_the_end = warm.finished if command[0] == sys.executable else finished
    done = run_to_the_end(command, env=env, cwd=ROOT, seconds=seconds)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def assert_two(out: str) -> None:
    lines = sorted(line[line.index("rank") :] for line in out.splitlines() if "rank" in line)
    assert lines == ["rank 0 of 2 has 0 2 4 6", "rank 1 of 2 has 1 3 5 7"], out


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [launch, mpirun, torchrun])
def test_replicas_of_all_launchers_meet(tmp_path, launcher):
    assert_two(run([*launcher(2), script(tmp_path)], real=True))


@pytest.mark.slow
def test_one_process_under_a_launcher_has_a_group_too(tmp_path):
    assert "rank 0 of 1 has 0 1 2 3 4 5 6 7" in run([*mpirun(1), script(tmp_path)])


MPI = """
import os
import torch
from sambaflow import samba
from sambaflow.samba.utils import get_rank, get_world_size

torch.distributed.init_process_group(backend="mpi")
total = torch.tensor([get_rank() + 1.0])
torch.distributed.all_reduce(total)
os.write(1, f"rank {get_rank()} of {get_world_size()}: {total.item():g}\\n".encode())
try:
    torch.distributed.init_process_group("mpi")
except ValueError as error:
    assert "twice" in str(error)
else:
    raise AssertionError
"""


@pytest.mark.slow
def test_the_mpi_backend_is_the_launchers_group(tmp_path):
    of_two = ["rank 0 of 2: 3", "rank 1 of 2: 3"]
    for launcher in (launch, mpirun):
        lines = run([*launcher(2), script(tmp_path, MPI)]).splitlines()
        assert sorted(line[line.index("rank") :] for line in lines) == of_two
    assert run([sys.executable, script(tmp_path, MPI)]) == "rank 0 of 1: 1\n"


@pytest.mark.slow
def test_two_jobs_at_once_do_not_meet(tmp_path):
    jobs = [
        subprocess.Popen(
            in_place([*mpirun(2), script(tmp_path)]),
            env=clean_environment(JOB=name, **warm.for_children()),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two")
    ]
    for job in jobs:
        out, _ = said(job)
        assert job.returncode == 0
        assert_two(out)


@pytest.mark.slow
def test_two_programs_in_a_row_under_one_mpirun(tmp_path):
    """The first leaves without cleaning up after itself, and the ranks do not keep step."""
    first = script(tmp_path, MEETS + "\nos._exit(0)\n")
    (tmp_path / "second").mkdir()
    second = script(tmp_path / "second")
    (python,) = in_place([sys.executable])
    both = f"sleep $PMI_RANK; JOB=a {python} {first}; sleep $((1 - PMI_RANK)); "
    both += f"JOB=b exec {python} {second}"
    out = run([*mpirun(2)[:-1], "sh", "-c", both])
    assert sorted(out.splitlines()) == sorted(
        2 * ["rank 0 of 2 has 0 2 4 6", "rank 1 of 2 has 1 3 5 7"]
    )


@pytest.mark.slow
def test_torchrun_starts_again(tmp_path):
    text = MEETS + (
        "\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and found.rank == 1:\n"
        "    os._exit(7)\n"
        "dist.barrier()\nos.write(1, b'done\\n')\n"
    )
    out = run([*torchrun(2, "--max-restarts=2"), script(tmp_path, text)])
    assert out.count("done") == 2


@pytest.mark.parametrize("engine", ["torch", pytest.param("jax", marks=pytest.mark.slow)])
def test_the_launcher_ends_all_when_one_fails(tmp_path, engine):
    """Replicas that have met: an exit with a code waits for nobody, whatever the others do."""
    text = MEETS + (
        "\nimport time\ndist.barrier()\nif found.rank == 1:\n    sys.exit(5)\ntime.sleep(300)\n"
    )
    # Who waited for the sleep would be killed before it is over.
    done = warm.finished(
        [*launch(2, f"--log-folder={tmp_path / 'logs'}"), script(tmp_path, text)],
        env=clean_environment(JOB="one", SN_DP_ENGINE=engine, **warm.for_children()),
        seconds=SECONDS,
    )
    assert done.returncode == 5
    assert "rank 1 ended with code 5" in done.stderr
    assert_two(done.stdout)
    assert (tmp_path / "logs" / "rank1.log").read_text() == "rank 1 of 2 has 1 3 5 7\n"


@pytest.mark.parametrize("count", ["0", "-1", "two"])
def test_the_number_of_replicas_is_checked(capsys, count):
    with pytest.raises(SystemExit):
        launch_command.run([f"-n={count}", "script.py"])
    assert f"{count!r} is not a whole number from 1 on" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        launch_command.run([])
    assert capsys.readouterr().err.endswith("are required: -n/--replicas, script\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nnodes=2"], "--nnodes 2: --master-addr must name host 0, on all hosts"),
        (["--node-rank=1"], "--node-rank 1 of --nnodes 1: hosts count from 0 to 0"),
        (["--master-port=65536"], "--master-port 65536: ports end at 65535"),
        (["--node-rank=-1"], "'-1' is not a whole number from 0 on"),
    ],
)
def test_the_options_for_several_hosts_are_checked(capsys, options, message):
    with pytest.raises(SystemExit):
        launch_command.run(["-n=1", *options, "script.py"])
    assert message in capsys.readouterr().err


def test_each_host_has_its_own_ranks(tmp_path):
    text = (
        "import os\nnames = 'RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT'\n"
        "print(*(os.environ[name] for name in names.split()), "
        "os.environ['TORCHELASTIC_USE_AGENT_STORE'])\n"
    )
    options = ["--nnodes=3", "--node-rank=1", "--master-addr=b07", "--master-port=5000"]
    assert sorted(run([*launch(2), *options, script(tmp_path, text)], real=True).splitlines()) == [
        "[2] 2 6 0 2 b07 5000 False",
        "[3] 3 6 1 2 b07 5000 False",
    ]


def test_the_failure_of_replicas_that_end_at_once_is_told(tmp_path):
    done = warm.finished(
        [*launch(1), script(tmp_path, "raise SystemExit(3)")], env=clean_environment()
    )
    assert done.returncode == 3
    assert "launch: rank 0 ended with code 3" in done.stderr


def test_what_has_started_ends_when_the_rest_cannot_start(monkeypatch, tmp_path):
    ended = []

    class Second:
        def __init__(self, rank, *_):
            self.rank = rank
            if rank == 1:
                raise OSError("no more processes")

        def end(self):
            ended.append(self.rank)

    monkeypatch.setattr(launch_command, "_Replica", Second)
    with pytest.raises(OSError, match="no more"):
        launch_command.run(["-n=2", script(tmp_path, "")])
    assert ended == [0]


@pytest.mark.slow
def test_the_launcher_passes_sigterm_on(tmp_path):
    # Who waited for the sleep, or until replicas are killed, would not be done in time.
    text = MEETS + "\nimport time\nos.write(1, b'%d\\n' % os.getpid())\ntime.sleep(1000)\n"
    process = subprocess.Popen(
        in_place([*launch(2, "--no-prefix", "--grace=1000"), script(tmp_path, text)]),
        env=clean_environment(JOB="one", **warm.for_children()),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    pids: list[int] = []
    while len(pids) < 2:
        line = line_of(process)
        assert line
        pids += [int(line)] if line.strip().isdigit() else []
    process.send_signal(signal.SIGTERM)
    said(process)
    assert process.returncode == 128 + signal.SIGTERM
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


LENET = str(ROOT / "examples" / "lenet.py")


@pytest.fixture(scope="module")
def pef(tmp_path_factory):
    """LeNet for several replicas, as a command line has compiled it."""
    folder = tmp_path_factory.mktemp("lenet")
    options = ["--data-parallel", "--pef-name=lenet", f"--output-folder={folder}"]
    run([sys.executable, LENET, "compile", *options])
    return folder / "lenet" / "lenet.pef"


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [mpirun, torchrun, launch])
def test_lenet_trains(pef, launcher):
    options = ["run", "--data-parallel", "--reduce-on-rdu", "--num-epochs=4", f"--pef={pef}"]
    out = run([*launcher(2), LENET, *options], seconds=300)
    # torchrun passes lines of two replicas on as they come, even one within the other.
    scores = re.findall(r"Accuracy:\s*([\d.]+)", out)
    assert len(scores) == 2
    assert scores[0] == scores[1]  # they have the same weights
    assert float(scores[0]) > 80
