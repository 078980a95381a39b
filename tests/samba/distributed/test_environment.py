"""What launchers tell a process."""

from __future__ import annotations

import pytest

from samba.distributed.environment import detect, first_host, share_of_cores
from samba.errors import ArgumentError


def told(prefix: str = "", **values: object) -> dict[str, str]:
    """Variables of a launcher, whose names begin alike."""
    return {prefix + name: str(value) for name, value in values.items()}


MPICH = told(PMI_RANK=1, PMI_SIZE=4, MPI_LOCALRANKID=1, MPI_LOCALNRANKS=4)
OPENMPI = told("OMPI_COMM_WORLD_", RANK=2, SIZE=4, LOCAL_RANK=0, LOCAL_SIZE=2)
SLURM = told("SLURM_", PROCID=3, NTASKS=8, LOCALID=1, JOB_ID=77, STEP_ID=0)
MVAPICH = told("MV2_COMM_WORLD_", RANK=3, SIZE=4, LOCAL_RANK=1, LOCAL_SIZE=2)
JSM = told("JSM_NAMESPACE_", RANK=5, SIZE=6, LOCAL_RANK=2, LOCAL_SIZE=3)
FLUX = told("FLUX_", TASK_RANK=2, JOB_SIZE=4, TASK_LOCAL_ID=2, JOB_NNODES=1, JOB_ID="f9")
PALS = told("PALS_", RANKID=7, LOCAL_RANKID=3, LOCAL_SIZE=4, APID="a-1")
TORCH = told(RANK=5, WORLD_SIZE=8, LOCAL_RANK=1, LOCAL_WORLD_SIZE=4)
TORCH |= told("MASTER_", ADDR="b07", PORT=1234)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (MPICH, ("mpich", 1, 4, 1, 4, None)),
        (OPENMPI, ("openmpi", 2, 4, 0, 2, None)),
        (SLURM, ("slurm", 3, 8, 1, 0, None)),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(x3),2"}, ("slurm", 3, 8, 1, 2, None)),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "4"}, ("slurm", 3, 4, 1, 0, None)),
        (TORCH, ("torch", 5, 8, 1, 4, ("b07", 1234))),
        ({"RANK": "0", "WORLD_SIZE": "2"}, ("torch", 0, 2, 0, 0, None)),
        (MVAPICH, ("mvapich", 3, 4, 1, 2, None)),
        (JSM, ("jsm", 5, 6, 2, 3, None)),
        (FLUX, ("flux", 2, 4, 2, 4, None)),
        (FLUX | {"FLUX_JOB_NNODES": "2"}, ("flux", 2, 4, 2, 0, None)),
        (PALS | {"PMI_RANK": "7", "PMI_SIZE": "8"}, ("mpich", 7, 8, 3, 4, None)),
        (PALS | {"WORLD_SIZE": "8"}, ("pals", 7, 8, 3, 4, None)),
        ({"PMIX_RANK": "1", "WORLD_SIZE": "2"}, ("pmix", 1, 2, 1, 0, None)),
        (SLURM | {"PMIX_RANK": "3"}, ("slurm", 3, 8, 1, 0, None)),
        (
            MPICH | {"MASTER_ADDR": "b07", "MASTER_PORT": "99"},
            ("mpich", 1, 4, 1, 4, ("b07", 99)),
        ),
    ],
)
def test_launchers(env, expected):
    found = detect(env)
    assert found is not None
    names = ("launcher", "rank", "size", "local_rank", "local_size", "address")
    assert tuple(getattr(found, name) for name in names) == expected


def test_nothing_without_a_launcher():
    assert detect({}) is None
    assert detect({"RANK": "0"}) is None


def test_mpirun_goes_before_the_slurm_job_that_it_runs_in():
    found = detect(MPICH | SLURM)
    assert found is not None
    assert found.launcher == "mpich"


def test_the_script_of_a_slurm_job_is_one_process():
    job = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "77"}
    assert detect(job) is None


def test_slurm_on_several_hosts_has_an_address_and_its_own_port():
    several = SLURM | {"SLURM_STEP_NODELIST": "gpu[03-04],b1", "SLURM_STEP_NUM_NODES": "3"}
    first, other = detect(several), detect(several | {"SLURM_JOB_ID": "78"})
    assert first is not None
    assert other is not None
    assert first.address is not None
    assert other.address is not None
    assert first.address[0] == other.address[0] == "gpu03"
    assert first.address[1] != other.address[1]


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("b07", "b07"),
        ("b[1-3,9]", "b1"),
        ("a,b", "a"),
        ("r1[08-09]-ib,x", "r108-ib"),
        ("r[1-2]n[01-04]", "r1n01"),
        ("r[2,4]n[01-04,09]x,b7", "r2n01x"),
    ],
)
def test_first_host(nodes, host):
    assert first_host(nodes) == host


@pytest.mark.parametrize("nodes", ["", ",a", "b[1-3", "b]1", "b[]", "b[[1]]"])
def test_what_is_no_list_of_hosts_is_refused(nodes):
    with pytest.raises(ArgumentError, match="a list of hosts"):
        first_host(nodes)


@pytest.mark.parametrize(
    ("env", "names"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, ["RANK", "rank 2 of 2"]),
        ({"PMI_RANK": "x", "PMI_SIZE": "2"}, ["PMI_RANK", "'x'"]),
        ({"RANK": "0", "WORLD_SIZE": "\u00b2"}, ["WORLD_SIZE", "'\u00b2'", "a whole number"]),
        (MPICH | {"MASTER_ADDR": "b07"}, ["MASTER_ADDR", "MASTER_PORT", "both"]),
        ({"PMIX_RANK": "1"}, ["PMIX_RANK", "how many", "WORLD_SIZE"]),
        (PALS, ["PALS_RANKID", "how many", "WORLD_SIZE"]),
    ],
)
def test_contradictions_are_refused(env, names):
    with pytest.raises(ArgumentError) as caught:
        detect(env)
    assert all(name in str(caught.value) for name in names)


@pytest.mark.parametrize(("cores", "size"), [(8, 3), (2, 2), (7, 7), (64, 8)])
def test_cores_are_dealt_out_once(cores, size):
    shares = [share_of_cores(range(cores), rank, size) for rank in range(size)]
    assert sorted(core for share in shares for core in share) == list(range(cores))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
