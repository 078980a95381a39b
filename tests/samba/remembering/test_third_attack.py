"""What one call of ``forward`` shows of two models whose texts are the same, and what it leaves."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import samba
from samba.abexit import SambaAtexit
from samba.remembering.stand_ins import Incomparable
from samba.remembering.trace_key import trace_key
from samba.tracer.inputs import collect_inputs
from tests.samba.remembering.project import key_of, key_or_refusal, loaded

TEXT = """
import itertools
import os
import random
from contextlib import nullcontext

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import samba

FIRST = True
NOTHING = nullcontext()


def chosen(first, second):
    return first if FIRST else second


class Odd(Exception):
    pass


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.other = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("seen", torch.ones(8))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.const, self.same = torch.ones(8), torch.ones(8)
        self.named = samba.from_torch_tensor(torch.ones(8), name="named")
        self.kind = None
        {made}

    def forward(self, x):
        y = self.linear(x)
        {statement}
        return y
"""


def files(statement: str, made: str = "pass") -> dict[str, str]:
    """A model with a line more in ``__init__`` and in ``forward``."""
    return {"net.py": TEXT.replace("{made}", made).replace("{statement}", statement)}


NOTICED: dict[str, tuple[str, str]] = {
    "a mark on operations": (
        "with samba.session.disable_graphamp() if FIRST else NOTHING: y = torch.relu(y)", "pass"
    ),
    "a parameter by another way": (
        "y = y + chosen(self.all[0], self.linear.weight)[0]", "self.all = [self.linear.weight]"
    ),
    "a buffer by another way": (
        "y = y + chosen(self.all[0], self.seen)", "self.all = [self.seen]"
    ),
    "the name of a constant": ("y = y + chosen(self.const, self.same)", "pass"),
    "a constant that has a gradient": (
        "y = y + self.all[chosen(0, 1)]",
        "self.all = [torch.ones(8), torch.ones(8).requires_grad_()]",
    ),
    "a default of torch for a moment": (
        "torch.set_default_dtype(chosen(torch.float64, torch.float32)); z = torch.ones(8); "
        "torch.set_default_dtype(torch.float32); y = y + z",
        "pass",
    ),
    "buffers that share memory": (
        "self.seen.add_(1); y = y + self.more",
        "self.register_buffer('more', chosen(self.seen[:], self.seen.clone()))",
    ),
    "a constant in the memory of a buffer": (
        "self.seen.add_(1); y = y + self.all[0]",
        "self.all = [chosen(self.seen, self.seen.clone())]",
    ),
    "a buffer that is exchanged": ("self.seen = chosen(y[0], self.seen * 1)", "pass"),
    "a buffer of another value": ("y = y * self.steps.item()", "self.steps.fill_(chosen(1, 2))"),
    "a value that is kept in the model": ("self.kind = chosen('a', 'b')", "pass"),
}  # fmt: skip


@pytest.mark.parametrize("what", NOTICED)
def test_what_a_call_does_otherwise_is_noticed(what: str, tmp_path: Path) -> None:
    with loaded(tmp_path, files(*NOTICED[what])) as net:
        first = key_of(net)
        assert key_of(net) == first
        net.FIRST = False
        assert key_or_refusal(net) != first


def test_lines_of_calls_and_hooks_are_noticed(tmp_path: Path) -> None:
    """A trace tells of them; all else is the same."""
    text = "y = F.relu(y) if FIRST else y\n        y = y if FIRST else F.relu(y)"
    hook = "self.other.register_forward_hook({})"
    made = "chosen((lambda *_: None),\n            (lambda *_: None))"
    for statement, init in ((text, "pass"), ("y = self.other(y)", hook.format(made))):
        with loaded(tmp_path, files(statement, init)) as net:
            first = key_of(net)
            net.FIRST = False
            assert key_of(net) != first


REFUSED: dict[str, tuple[str, str, str]] = {
    "memory of a constant that changes": (
        "a = np.ones(8, np.float32); z = torch.from_numpy(a); y = y * z; a[0] = 7",
        "pass", "changes the values of a constant",
    ),
    "a view of a constant": ("self.const.view(8).add_(1)", "pass", "writes into a constant"),
    "a list of constants": ("torch._foreach_add_([self.const], 1)", "pass", "into a constant"),
    "a list of buffers": (
        "torch._foreach_add_([self.steps], 1); y = y * self.steps.item()",
        "pass", "reads a value that it has changed",
    ),
    "a mark on a constant": ("self.const.requires_grad_()", "pass", "of a constant"),
    "a gradient of a constant": ("self.all[0].grad = y", "self.all = [self.same]", "of a constant"),
    "its function of autograd": ("y.grad_fn.register_hook(print)", "pass", "__get__"),
    "its gradients": ("y.sum().backward()", "pass", "backward"),
    "memory": ("y = y + torch.from_numpy(self.const.numpy())", "pass", "numpy"),
    "other memory": ("y.data = y * 2", "pass", "__set__"),
    "an address": ("y = y + self.const.data_ptr() % 2", "pass", "data_ptr"),
    "an iterator": ("y = y + next(self.all)", "self.all = iter([1, 2])", "cannot be rewound"),
    "a count": ("y = y + next(self.all)", "self.all = itertools.count()", "cannot be rewound"),
    "a seed": ("torch.manual_seed(torch.initial_seed())", "pass", "torch's generator"),
    "a default of torch": ("torch.set_default_dtype(torch.float64)", "pass", "default dtype"),
    "the mode of gradients": ("torch.set_grad_enabled(False)", "pass", "gradients are recorded"),
    "autocast": ("torch.set_autocast_enabled('cpu', True)", "pass", "autocast"),
    "the environment": ("os.environ['ODD'] = '1'", "pass", "os.environ"),
    "hooks of all modules": (
        "nn.modules.module.register_module_forward_hook(lambda *_: None)",
        "pass", "global forward hook",
    ),
    "its hooks": ("self.other.register_forward_hook(print)", "pass", "hooks"),
    "what the session has": (
        "samba.session.add_aux_tensor(samba.from_torch_tensor(y, name='y'), 'odd')",
        "pass", "samba.session",
    ),
    "what runs at exit": ("samba.session.atexit_register(print)", "pass", "at exit"),
    "an attribute of a constant": ("self.const.odd = 1", "pass", "attribute of a constant"),
    "a value that each call changes": ("self.kind = (self.kind or 0) + 1", "pass", "changes kind"),
    "a value that decides": (
        "y = y * 2 if self.kind else y; self.kind = 'a'", "pass", "changes kind"
    ),
    "a tensor that is kept": ("self.kind = y", "pass", "changes kind"),
    "a value that is kept elsewhere": ("global FIRST; FIRST = 3", "pass", "changes FIRST"),
    "what goes to stderr": ("import sys; print('odd', file=sys.stderr)", "pass", "warns 'odd"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_digest_has_is_refused_and_put_back(what: str, tmp_path: Path) -> None:
    statement, made, reason = REFUSED[what]
    _leaves_all(tmp_path, files(statement, made), Incomparable, reason)


def _leaves_all(
    tmp_path: Path, project: dict[str, str], error: type[BaseException] | None, reason: str = ""
) -> None:
    """Assert that a call, which may fail, leaves model and process as they were."""
    with loaded(tmp_path, project) as net:
        if error is not None:
            error = getattr(net, error.__name__, error)
        model = net.Net()
        given = collect_inputs(model, torch.ones(2, 8))
        before = _state(model)
        if error is None:
            trace_key(model, given, inference=False)
        else:
            with pytest.raises(error) as caught:
                trace_key(model, given, inference=False)
            assert reason in str(caught.value)
        after = _state(model)
        assert [name for name in before if before[name] != after.get(name)] == []
        assert before.keys() == after.keys()
        assert net.FIRST is True


def _state(model: nn.Module) -> dict[str, Any]:
    """What a call of ``forward`` may change."""
    state: dict[str, Any] = {}
    tensors: list[torch.Tensor] = []
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            entries = value.items() if isinstance(value, dict) else ((name, value),)
            for key, entry in entries:
                state[f"{path}.{name}.{key}"] = id(entry)
                tensors += [entry] if isinstance(entry, torch.Tensor) else []
            if isinstance(value, list):
                tensors += value
        state[f"{path}.hooks"] = len(module._forward_hooks)
    for number, tensor in enumerate(tensors):
        state[f"tensor {number}"] = (
            *(tensor.requires_grad, tensor.is_leaf, tensor.grad, tensor._version),
            *(sorted(vars(tensor)), tensor.detach().sum().item()),
        )
    return state | {
        "torch's generator": torch.get_rng_state().tolist(),
        "Python's generator": random.getstate(),
        "NumPy's generator": np.random.get_state()[1].tolist(),
        "settings": (torch.get_default_dtype(), torch.is_grad_enabled()),
        "autocast": torch.is_autocast_enabled("cpu"),
        "environment": dict(os.environ),
        "hooks of all modules": len(nn.modules.module._global_forward_hooks),
        "the session": dict(samba.session._modes._aux),
        "what runs at exit": list(SambaAtexit._handlers),
    }


LEAVES: dict[str, str] = {
    "writes a buffer": "self.seen.mul_(0.5); self.steps += 1",
    "gives a buffer a gradient": "self.seen.mul_(self.linear.bias)",
    "exchanges a buffer": "self.seen = self.seen * y[0]",
    "registers a buffer": "self.other.register_buffer('late', y)",
    "removes a buffer": "del self.seen",
    "freezes its parameters": "self.requires_grad_(False)",
    "marks a parameter": "w = self.linear.weight; w.odd = 1; w.grad = w * 1",
    "reads a SambaTensor": "y = y + self.named",
    "keeps a value": "self.kind = 'a'",
    "sets a mode": "self.other.eval()",
}  # fmt: skip


@pytest.mark.parametrize("what", LEAVES)
def test_the_model_is_as_before_a_call(what: str, tmp_path: Path) -> None:
    _leaves_all(tmp_path, files(LEAVES[what]), None)


class Odd(Exception):
    """Stands for the class of this name in the project."""


@pytest.mark.parametrize("error", [Odd, KeyboardInterrupt, SystemExit])
def test_all_is_as_before_a_call_that_fails(error: type[BaseException], tmp_path: Path) -> None:
    statement = (
        "global FIRST; FIRST = False; self.kind = self.seen = y; self.other.eval(); "
        "os.environ['ODD'] = '1'; random.random(); np.random.rand(); torch.manual_seed(3); "
        f"raise {error.__name__}"
    )
    _leaves_all(tmp_path, files(statement), error)


def test_what_a_first_call_finds_out_is_no_change_of_what_is_done(tmp_path: Path) -> None:
    """Models of transformers note in their configuration what kind of labels they have."""
    statement = (
        "self.kind = self.kind or ('single' if x.dtype == torch.float32 and x.dim() > 1 else 'x')"
    )
    with loaded(tmp_path, files(statement)) as net:
        assert key_of(net) == key_of(net)


def test_a_trace_finds_what_it_would_without_the_call(tmp_path: Path) -> None:
    """An iterator that the call would have moved, a name of the session that it would have used."""
    text = "y = y + next(self.all); samba.session.add_aux_tensor(self.named, 'odd-name')"
    with loaded(tmp_path, files(text, "self.all = iter([1, 2, 3])")) as net:
        key_or_refusal(net)
        model = net.Net()
        with pytest.raises(Incomparable):
            trace_key(model, collect_inputs(model, torch.ones(2, 8)), inference=False)
        assert next(model.all) == 1
        assert samba.session.is_valid_aux_tensor_name("odd-name")
