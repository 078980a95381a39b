"""Forks while a device is open; ``test_forks.py`` runs it in a process of its own.

Prints a JSON object: how each child ended and what it raised.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import samba
from emulator.device import Device
from pef_schema.read import read_pef
from samba.support.tracing import tracing
from tests.processes import joined
from tests.samba.worlds import Scene, World, features, named, other_batch

_PATIENCE = 120.0
"""Seconds after which a child counts as waiting forever."""


def ended(action: Callable[[], object], leave: Callable[[int], None]) -> dict[str, object]:
    """Fork, do something in the child, and see how that ended."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")
        child = os.fork()
    if child == 0:
        with contextlib.redirect_stdout(sys.stderr):
            try:
                action()
                told = ["", ""]
            except BaseException as error:
                told = [type(error).__name__, str(error)]
        os.write(writing, json.dumps(told).encode())
        leave(3)
    os.close(writing)
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            told = json.loads(os.read(reading, 1 << 16) or b'["killed", ""]')
            return {"status": os.waitstatus_to_exitcode(status), "error": told}
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return {"status": "waits forever", "error": ["", ""]}


def spawned(pef: str, sent: Any) -> None:
    """What a child that is started again does: load the PEF and train."""
    scene = World(name="spawned").build()
    scene.pef = pef
    scene.trace()
    scene.run()
    sent.put("ran")


def main(folder: str, slow: bool) -> None:
    """Run the cases.

    Args:
        folder: Where PEFs go.
        slow: Whether those that take seconds; else the others.
    """
    scene = World(name="mlp").build()
    with contextlib.redirect_stdout(sys.stderr):
        scene.compile(Path(folder))
    scene.trace()
    evaluator = samba.session.evaluator(scene.model)
    for _ in range(3):
        scene.run()
    evaluator.run(scene.inputs)
    program = read_pef(scene.pef)
    weight = scene.model.first.weight
    device = samba.session.need_loaded("fork").device
    plan = device.plan(tuple((c.section, 0) for c in program.schedules[0].calls[:1]))

    def fresh() -> None:
        other = World(name="fresh").build()
        other.pef = scene.pef
        other.trace()

    def write() -> None:
        weight.sn_data = torch.zeros(weight.shape)

    cases: dict[str, Callable[[], object]] = {
        "run": scene.run,
        "run part": lambda: scene.run(section_types=["fwd"]),
        "evaluate": lambda: evaluator.run(scene.inputs),
        "evaluate other": lambda: evaluator.run(named(other_batch(batch=2))),
        "evaluator": lambda: samba.session.evaluator(scene.model),
        "to_cpu": lambda: samba.session.to_cpu(scene.model),
        "to_rdu": lambda: samba.session.to_rdu(scene.model),
        "to_device": samba.session.to_device,
        "sn_data": lambda: weight.sn_data,
        "set sn_data": write,
        "sn_grad": lambda: weight.sn_grad,
        "get_tensors": lambda: samba.session.get_tensors_by_name([weight.sn_name]),
        "synchronize": samba.session.synchronize,
        "load": scene.trace,
        "load another": fresh,
        "open": lambda: Device(program),
        "device run": lambda: device.run(plan),
        "device read": lambda: device.read(0),
        "device plan": lambda: device.plan(((0, 0), (0, 0))),
    }
    found: dict[str, object] = {}
    scene.run()  # still under way when the next child begins
    if slow:
        fine: dict[str, Callable[[], object]] = {
            "reset": samba.session.reset,
            "host": lambda: samba.from_torch_tensor(torch.ones(3), name="a").add(1).sum().item(),
            "compile": lambda: World(name="child").build().compile(Path(folder)),
        }
        found |= {name: ended(do, sys.exit) for name, do in fine.items()}
        found["spawned"] = answer_of_spawned(scene.pef)
    else:
        found["nothing"] = ended(lambda: None, sys.exit)
        found["run and exit"] = ended(scene.run, sys.exit)
        found |= {name: ended(do, os._exit) for name, do in cases.items()}
        found["held elsewhere"] = held_elsewhere(scene)
        found["loader"] = loader(scene)
    scene.run()  # the parent goes on as before
    print(json.dumps(found))


def answer_of_spawned(pef: str) -> object:
    """What a child that is started again says after it has trained."""
    context = multiprocessing.get_context("spawn")
    sent = context.Queue()
    child = context.Process(target=spawned, args=(pef, sent))
    child.start()
    answer = sent.get(timeout=120)
    child.join(60)
    assert child.exitcode == 0
    return answer


def held_elsewhere(scene: Scene) -> dict[str, object]:
    """A child that is forked while another thread is in the middle of a call and of a trace."""
    turns = samba.session.need_loaded("fork").turns
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with turns.held(), tracing():
            inside.set()
            leave.wait(120)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert inside.wait(60)

    def child() -> None:
        if samba.session.tracing:
            raise AssertionError("nobody traces in the child")
        with tracing():
            pass
        samba.session.to_cpu(scene.model)

    try:
        return ended(child, os._exit)
    finally:
        leave.set()
        joined(thread)


def collate(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, ...]:
    """Runs in workers: batches by way of SambaTensors, which arrive as plain ones."""
    x = samba.from_torch_tensor(torch.stack([row[0] for row in rows]), name="x")
    return x + x, torch.stack([row[1] for row in rows])


def loader(scene: Scene) -> bool:
    """Train from a loader with forked workers that make SambaTensors; warnings are errors here."""
    tensors = features(20)
    data = DataLoader(
        TensorDataset(tensors["x"], tensors["y"]),
        batch_size=5,
        num_workers=2,
        collate_fn=collate,
        multiprocessing_context="fork",
    )
    found = []
    for x, y in data:
        scene.run(named({"x": x, "y": y}))
        found.append(samba.to_torch(x))
    return torch.equal(torch.cat(found), tensors["x"] * 2)


if __name__ == "__main__":
    warnings.simplefilter("error")
    main(sys.argv[1], slow="slow" in sys.argv[2:])
