"""What launchers tell a process."""

from __future__ import annotations

import pytest

from samba.distributed.environment import detect, first_host
from samba.distributed.threads import share_of_cores
from samba.errors import ArgumentError

MPICH = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
}
TORCH = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "b07",
    "MASTER_PORT": "1234",
}


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
        (
            MPICH | {"MASTER_ADDR": "b07", "MASTER_PORT": "99"},
            ("mpich", 1, 4, 1, 4, ("b07", 99)),
        ),
    ],
)
def test_launchers(env, expected):
    found = detect(env)
    assert found is not None
    assert (
        found.launcher,
        found.rank,
        found.size,
        found.local_rank,
        found.local_size,
        found.address,
    ) == expected


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
    [("b07", "b07"), ("b[1-3,9]", "b1"), ("a,b", "a"), ("r1[08-09]-ib,x", "r108-ib")],
)
def test_first_host(nodes, host):
    assert first_host(nodes) == host


@pytest.mark.parametrize(
    ("env", "names"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, ["RANK", "rank 2 of 2"]),
        ({"PMI_RANK": "x", "PMI_SIZE": "2"}, ["PMI_RANK", "'x'"]),
        ({"RANK": "0", "WORLD_SIZE": "\u00b2"}, ["WORLD_SIZE", "'\u00b2'", "a whole number"]),
        (MPICH | {"MASTER_ADDR": "b07"}, ["MASTER_ADDR", "MASTER_PORT", "both"]),
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
