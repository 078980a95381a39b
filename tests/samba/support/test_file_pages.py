"""Memory that a file holds: nobody can tell, and what is not surely safe is left alone."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from samba.support import file_pages
from samba.support.file_pages import Block, move_to_file

MIB = 1 << 20


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Test runners have threads of their own, which write no tensors."""
    monkeypatch.setattr(file_pages, "_frames", dict)
    assert file_pages._folder() is not None, "no disk for temporary files on this machine"


def numbers(nbytes: int = MIB, seed: int = 0) -> torch.Tensor:
    made = torch.randint(256, (nbytes,), generator=torch.Generator().manual_seed(seed))
    return made.to(torch.uint8)


def block_of(tensor: torch.Tensor) -> Block:
    storage = tensor.untyped_storage()
    return Block(start=storage.data_ptr(), nbytes=storage.nbytes())


def in_memory(tensor: torch.Tensor) -> int:
    return file_pages._in_memory(block_of(tensor).pages())


def test_a_block_leaves_memory_and_is_the_same() -> None:
    tensor = numbers()
    want, address = tensor.clone(), tensor.data_ptr()
    assert in_memory(tensor) >= MIB - 2 * mmap.PAGESIZE
    assert move_to_file([block_of(tensor)]) >= MIB - 2 * mmap.PAGESIZE
    assert in_memory(tensor) == 0
    assert torch.equal(tensor, want)
    assert tensor.data_ptr() == address
    assert in_memory(tensor) == 0  # reading takes none


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 600_000), min_size=1, max_size=6),
    writes=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 599_999), st.integers(0, 255))),
    times=st.integers(1, 3),
)
def test_any_blocks_hold_what_was_written(sizes, writes, times) -> None:
    tensors = [numbers(size, seed) for seed, size in enumerate(sizes)]
    twins = [tensor.clone() for tensor in tensors]
    for _ in range(times):
        move_to_file([block_of(tensor) for tensor in tensors])
        for which, place, value in writes:
            for group in (tensors, twins):
                target = group[which % len(group)]
                target[place % len(target)] = value
        assert all(map(torch.equal, tensors, twins))


def test_writes_stay_in_memory_and_can_move_again() -> None:
    tensor = numbers()
    move_to_file([block_of(tensor)])
    tensor.add_(1)
    want = tensor.clone()
    assert in_memory(tensor) >= MIB - 2 * mmap.PAGESIZE
    assert move_to_file([block_of(tensor)]) > 0
    assert in_memory(tensor) == 0
    assert torch.equal(tensor, want)
    assert move_to_file([block_of(tensor)]) == 0  # nothing is left to give back


def test_views_and_parts_move_with_their_storage() -> None:
    whole = numbers(2 * MIB)
    part = whole[MIB // 2 : MIB]
    move_to_file([block_of(whole)])
    part.fill_(7)
    assert whole[MIB // 2 : MIB].eq(7).all()
    assert torch.equal(whole[:1000], numbers(2 * MIB)[:1000])


def test_freed_memory_is_used_again(monkeypatch) -> None:
    monkeypatch.setattr(file_pages, "PART", MIB)
    want = [numbers(MIB + 13, seed) for seed in range(8)]
    for _ in range(5):
        tensors = [tensor.clone() for tensor in want]
        assert move_to_file([block_of(tensor) for tensor in tensors]) > 0
        assert all(map(torch.equal, tensors, want))
        del tensors
        zeros = torch.zeros(MIB)
        assert not zeros.any()


def test_memory_of_one_mapping_and_of_the_heap_moves() -> None:
    """Both of glibc's ways to allocate; a fresh process takes a mapping for each large block."""
    done = script(
        """
        libc = ctypes.CDLL(None)
        for threshold in (1 << 16, 1 << 30):
            libc.mallopt(-3, threshold)
            tensors = [torch.full((300_000,), float(n)) for n in range(10)]
            blocks = [Block(start=t.data_ptr(), nbytes=t.nbytes) for t in tensors]
            header = ctypes.c_uint64.from_address(tensors[0].data_ptr() - 8).value
            assert bool(header & 2) is (threshold < MIB), header
            before = anonymous()
            moved = move_to_file(blocks)
            assert moved > 0.98 * 10 * 1_200_000, moved
            assert before - anonymous() > 0.9 * moved, (before, anonymous(), moved)
            assert all(bool((t == n).all()) for n, t in enumerate(tensors))
            libc.malloc_trim(0)
            assert all(bool((t == n).all()) for n, t in enumerate(tensors))
        """
    )
    assert done.returncode == 0, done.stderr


def test_a_forked_process_has_its_own() -> None:
    done = script(
        """
        import os
        tensor = torch.rand(MIB)
        values, want = tensor.numpy(), tensor.clone().numpy()
        assert move_to_file([Block(start=tensor.data_ptr(), nbytes=tensor.nbytes)]) > 0
        child = os.fork()
        if child == 0:
            same = bool((values == want).all())
            values[:] = 0
            os._exit(0 if same and not values.any() else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert (values == want).all()
        """
    )
    assert done.returncode == 0, done.stderr


def test_what_was_written_meanwhile_stays(monkeypatch) -> None:
    tensors = [numbers(seed=0), numbers(seed=1)]
    write = file_pages._write

    def write_and_change(file: int, block: Block) -> None:
        write(file, block)
        tensors[0][MIB // 2] = 99

    tensors[0][MIB // 2] = 1
    monkeypatch.setattr(file_pages, "_write", write_and_change)
    moved = move_to_file([block_of(tensor) for tensor in tensors])
    assert tensors[0][MIB // 2] == 99
    assert in_memory(tensors[0]) > 0
    assert in_memory(tensors[1]) == 0
    assert MIB // 2 < moved < MIB + 1


def refused(tensor: torch.Tensor, block: Block | None = None) -> None:
    want = tensor.clone()
    assert move_to_file([block or block_of(tensor)]) == 0
    assert torch.equal(tensor, want)


def test_small_and_foreign_memory_is_left_alone() -> None:
    refused(numbers(1000))
    tensor = numbers(2 * MIB)
    half = block_of(tensor).nbytes // 2
    refused(tensor, Block(start=tensor.data_ptr() + half, nbytes=half))  # no allocation
    refused(tensor, Block(start=tensor.data_ptr(), nbytes=64 * MIB))  # longer than one
    refused(numbers().share_memory_())
    with mmap.mmap(-1, MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        foreign = torch.frombuffer(memory, dtype=torch.uint8)
        foreign.copy_(numbers())
        refused(foreign)
        del foreign
    with tempfile.TemporaryFile() as file:
        file.write(bytes(MIB))
        file.flush()
        with mmap.mmap(file.fileno(), MIB, flags=mmap.MAP_PRIVATE) as memory:
            mapped = torch.frombuffer(memory, dtype=torch.uint8)
            refused(mapped)
            del mapped


def test_a_thread_that_may_write_keeps_memory() -> None:
    """Threads that wait for a lock write nothing; of others nobody knows."""
    done = script(
        """
        import threading, time
        begun, done = threading.Event(), threading.Event()

        def work():
            begun.set()
            while not done.is_set():
                time.sleep(0.01)

        def block_of(tensor):
            return Block(start=tensor.data_ptr(), nbytes=tensor.nbytes)

        for target, moves in ((done.wait, True), (work, False)):
            thread = threading.Thread(target=target)
            thread.start()
            while moves and "wait" not in sys._current_frames()[thread.ident].f_code.co_name:
                time.sleep(0.01)
            moves or begun.wait()
            tensor = torch.rand(MIB)
            twin = tensor.clone()
            assert (move_to_file([block_of(tensor)]) > 0) is moves, target
            assert torch.equal(tensor, twin)
            done.set()
            thread.join()
            done.clear()
        tensor = torch.rand(MIB)
        assert move_to_file([block_of(tensor)]) > 0
        """
    )
    assert done.returncode == 0, done.stderr


def test_a_thread_that_comes_late_keeps_memory(monkeypatch) -> None:
    """What counts is the moment of the exchange, not that of the first look."""
    write, tensor = file_pages._write, numbers()

    def write_and_start(file: int, block: Block) -> None:
        write(file, block)
        monkeypatch.setattr(file_pages, "_frames", lambda: {1: sys._getframe()})

    monkeypatch.setattr(file_pages, "_write", write_and_start)
    refused(tensor)


def test_locked_memory_is_left_alone() -> None:
    libc, page = ctypes.CDLL(None, use_errno=True), mmap.mmap(-1, mmap.PAGESIZE)
    address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    assert libc.mlock(address, mmap.PAGESIZE) == 0
    try:
        refused(numbers())
    finally:
        libc.munlock(address, mmap.PAGESIZE)
    tensor = numbers()
    assert move_to_file([block_of(tensor)]) > 0


def test_no_room_keeps_memory(monkeypatch) -> None:
    monkeypatch.setattr(file_pages, "LEFT_FREE", 1 << 62)
    refused(numbers())


@pytest.mark.parametrize("call", ["posix_fallocate", "write", "fdatasync"])
def test_a_disk_that_fails_keeps_memory(monkeypatch, call) -> None:
    def fail(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file_pages.os, call, fail)
    refused(numbers())


def test_a_file_size_limit_keeps_memory() -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.getsignal(signal.SIGXFSZ)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB // 2, before[1]))
    try:
        refused(numbers())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert handler is signal.SIG_IGN  # python's: the limit ends no process


def test_a_temporary_folder_in_memory_is_not_taken(monkeypatch) -> None:
    monkeypatch.setattr(file_pages.tempfile, "gettempdir", lambda: "/dev/shm")
    assert file_pages._folder() != "/dev/shm"
    monkeypatch.setattr(file_pages, "_DISKS", frozenset())
    assert file_pages._folder() is None
    refused(numbers())


def test_no_time_keeps_memory() -> None:
    tensor = numbers()
    assert move_to_file([block_of(tensor)], seconds=-1.0) == 0
    assert in_memory(tensor) > 0


def test_a_hole_is_mended() -> None:
    """What stands between a failing kernel and lost weights: the bytes come back from the file."""
    libc = file_pages._glibc()
    anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
        ctypes.c_long,
    )
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    start = libc.mmap(None, MIB, mmap.PROT_READ | mmap.PROT_WRITE, anonymous, -1, 0)
    block = Block(start=start, nbytes=MIB)
    want = numbers().numpy().tobytes()
    ctypes.memmove(start, want, MIB)
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(bytes(mmap.PAGESIZE) + want)
        file_pages._mend(libc, block, file.fileno(), 0)
        assert ctypes.string_at(start, MIB) == want  # there is no hole
        libc.munmap(start, MIB)
        file_pages._mend(libc, block, file.fileno(), mmap.PAGESIZE)
    assert ctypes.string_at(start, MIB) == want
    libc.munmap(start, MIB)


def test_no_file_stays_open_or_visible() -> None:
    before = set(os.listdir("/proc/self/fd"))
    names = set(os.listdir(tempfile.gettempdir()))
    tensor = numbers()
    assert move_to_file([block_of(tensor)]) > 0
    assert len(os.listdir("/proc/self/fd")) == len(before)
    assert not any("#" in name for name in set(os.listdir(tempfile.gettempdir())) - names)


HEAD = """
    import ctypes, sys
    import torch
    from samba.support.file_pages import Block, move_to_file
    MIB = 1 << 20

    def anonymous():
        with open("/proc/self/status") as status:
            return 1024 * int(next(l for l in status if l.startswith("RssAnon")).split()[1])
"""


def script(body: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, which has one thread."""
    code = textwrap.dedent(HEAD) + textwrap.dedent(body)
    root = Path(__file__).parents[3]
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
