"""Turn what torch.export raises into an error that names the user's line and module."""

from __future__ import annotations

import linecache
import re
import traceback
import warnings
from pathlib import Path
from types import TracebackType

import torch

from emulator.handler_errors import raise_error_of_handler
from pef_schema.errors import SambaError
from samba.tracer.assigned_state import put_back
from samba.tracer.changed_state import MutatedConstant
from samba.tracer.errors import (
    DEPENDS_ON_DATA,
    DataDependentBranch,
    DtypeMismatch,
    GradientError,
    ShapeMismatch,
    TraceError,
    UnsupportedOp,
    UnsupportedOps,
    UntracedFunction,
)
from samba.tracer.inputs import TraceInputs
from samba.tracer.snapshot import Snapshot
from samba.tracer.torch_internals import DATA_DEPENDENT_ERRORS, DYNAMIC_SHAPE_ERRORS
from samba.tracer.user_code import is_user_file

_DEPENDENT_TEXT = re.compile(
    r"data-dependent|DataDependent|unbacked|Could not guard|dynamic shape operator|"
    r"Could not extract specialized integer",
)
_STALE_TEXT = re.compile(r"fake tensor in the exported program constant|Mixing fake modes")
_MUTATED = re.compile(r"Constant (\S+) is mutated")
_SHAPE_TEXT = re.compile(
    r"must match|must have same|shape|size|dimension|Expected input|expected .* input|"
    r"broadcast|channels|out of range",
    re.IGNORECASE,
)
_DTYPE_TEXT = re.compile(
    r"same dtype|[Ee]xpected .*(dtype|scalar type)|Found dtype|mixed dtype|"
    r"Input type .* and (weight|bias) type|dtype .* does not match|can't be cast to|"
    r"used as indices must be",
)
_INTEGER_TEXT = re.compile(r"Long|long|int64|indices")
_STORAGE_TEXT = re.compile(r"set the storage of a tensor")
"""What torch says where ``forward`` resizes a tensor; it names devices that must match."""
_LEFT_TORCH = re.compile(r"numpy\(\)|\.data_ptr|__array__|storage")
_WHY_LOST = (
    "Torch's exporter can trace gradients of some operations (+, *, **, sum, sin), but not of "
    "those that save tensors (linear, tanh, exp, softmax): write this gradient as operations, or "
    "compute it outside of forward() and pass it as an input."
)
"""What a user can do where a gradient within ``forward`` is lost."""
_CONTROL_FLOW = ("cond", "while_loop", "scan", "map", "associative_scan")
"""What torch._higher_order_ops offers; a file there has the name of its function."""
_FLAT = 400
"""Characters of torch's text that a message keeps: beyond are hints for torch's developers."""


def explain(
    error: Exception,
    model: torch.nn.Module,
    given: TraceInputs,
    asks_gradient: str = "",
    asked_within: tuple[str, str] = ("", ""),
) -> Exception:
    """Find where in the user's model an export failed and say so.

    Args:
        error: What ``torch.export`` raised.
        model: The model being traced.
        given: Its inputs.
        asks_gradient: The line of ``forward`` that calls ``torch.autograd.grad``, if one does.
        asked_within: The same for a ``backward`` of the model's own: what calls it, and the line.

    Returns:
        The error to raise instead; ``error`` itself if it is one of ours already.
    """
    if isinstance(error, SambaError):
        return error
    where = _where(error.__traceback__, model)
    if control_flow := _control_flow(error.__traceback__):
        return UntracedFunction(
            where=where,
            function=control_flow,
            hint="A compiled graph is static: compute both sides and choose with torch.where, or "
            "make the condition a Python value.",
        )
    text = _essence(str(error))
    if asks_gradient and ":" not in where:
        return UntracedFunction(where=asks_gradient, function="torch.autograd.grad", hint=_WHY_LOST)
    if asked_within[0] and ":" not in where:
        return GradientError(
            where=asked_within[1],
            reason=f"{asked_within[0]}, and torch's exporter loses the tensors it needs",
            hint=_WHY_LOST,
            deviation="untraced-backward",
        )
    if _STALE_TEXT.search(text):
        return TraceError(
            where=where,
            reason="it uses a tensor from outside this trace: one that forward() kept from an "
            "earlier trace, one that torch saved for a gradient asked for here, or one that "
            "torch's exporter loses, such as results of torch.vmap with out_dims",
            hint="A tensor made while a model is traced belongs to that graph: make it again in "
            "every forward(), or register it as a buffer. Write a gradient as operations; leave "
            "out_dims out, and move the dimension of the result with movedim.",
        )
    kinds = {cls.__name__ for cls in type(error).__mro__}
    if kinds & DYNAMIC_SHAPE_ERRORS:
        return UnsupportedOps(
            model=type(model).__name__.lower(),
            ops=[UnsupportedOp(name=text, count=1, lines=(where,), reason=DEPENDS_ON_DATA)],
        )
    if mutated := _MUTATED.match(text):
        return MutatedConstant(model, mutated[1])
    depends, eager = bool(kinds & DATA_DEPENDENT_ERRORS), None
    if not depends and not _DEPENDENT_TEXT.search(text):
        eager = _eager_error(model, given)
        text = _eager_text(eager) or text
    if depends or _DEPENDENT_TEXT.search(text):
        source = _source(error.__traceback__)
        return DataDependentBranch(
            where=where,
            reason="forward() depends on the value of a tensor" + (f": {source}" if source else ""),
            hint="A compiled graph is static. Replace the branch with torch.where or masking, "
            f"move it out of forward(), or make the condition a Python value.{_membership(source)}",
        )
    if isinstance(error, (RuntimeError, ValueError, IndexError)) and _DTYPE_TEXT.search(text):
        hint = (
            "Labels and indices must be int64, all else floating point: call .long() or .float()."
            if _INTEGER_TEXT.search(text)
            else "Give both the same dtype. NumPy arrays are float64: call .float() on the "
            "input, or model.float() if the weights are float64."
        )
        return DtypeMismatch(where=where, reason=text, hint=hint)
    shapes = _SHAPE_TEXT.search(text) and not _STORAGE_TEXT.search(text)
    if isinstance(error, (RuntimeError, ValueError, IndexError)) and shapes:
        return ShapeMismatch(
            where=where,
            reason=text,
            hint="Check the shapes of the inputs given for tracing: they are "
            "the shapes that the program is compiled for.",
        )
    return TraceError(
        where=where,
        reason=f"{type(error).__name__}: {text}",
        hint=_advice(error, text, model, eager),
    )


def _control_flow(trace: TracebackType | None) -> str:
    """The function such as ``torch.cond`` that an export failed in; empty if there is none."""
    for frame, _ in traceback.walk_tb(trace):
        name = Path(frame.f_code.co_filename).stem
        if name in _CONTROL_FLOW and "_higher_order_ops" in frame.f_code.co_filename:
            return f"torch.{name}" if name == "cond" else f"{name} of torch"
    return ""


def users_frames(trace: TracebackType | None) -> TracebackType | None:
    """The lines of a traceback that are the user's: those of torch and of this package go.

    Args:
        trace: Where an export failed.

    Returns:
        The traceback without the others; None if there are none of the user's.

    Example:
        >>> users_frames(None) is None
        True
    """
    shorter = None
    for entry in reversed(_users_entries(trace)):
        shorter = TracebackType(shorter, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shorter


def _users_entries(trace: TracebackType | None) -> list[TracebackType]:
    entries = []
    while trace is not None:
        if is_user_file(trace.tb_frame.f_code.co_filename):
            entries.append(trace)
        trace = trace.tb_next
    return entries


def _source(trace: TracebackType | None) -> str:
    """The text of the user's line where an export failed."""
    entries = _users_entries(trace)
    if not entries:
        return ""
    last = entries[-1]
    return linecache.getline(last.tb_frame.f_code.co_filename, last.tb_lineno).strip()


def _membership(source: str) -> str:
    """What stands for ``in`` among tensors, where a line has it."""
    if " in " not in re.sub(r"\bfor\b.*?\bin\b", "", source):
        return ""
    return (
        " As a tensor, `3 in t` is (t == 3).any(), and `t in (1, 2)` is "
        "torch.isin(t, torch.tensor([1, 2]))."
    )


def _essence(text: str) -> str:
    """What torch says, without what it adds for its own developers."""
    head = re.split(r"\n\s*(?:Developer debug context|While executing|from user code)", text)[0]
    return head.strip()[:_FLAT]


def _advice(error: Exception, text: str, model: torch.nn.Module, eager: Exception | None) -> str:
    """What to do about an error.

    Args:
        error: What ``torch.export`` raised.
        text: What it says.
        model: The model.
        eager: What the model raises on the host; None if it returns.
    """
    packed = [type(m).__name__ for m in model.modules() if _is_quantized(m)]
    if packed and eager is None:
        return (
            f"{packed[0]} is a quantized module of torch, whose weights are packed for the host's "
            "kernels. Compile the original model; QuantizedLinear has 8-bit weights."
        )
    if isinstance(error, RuntimeError) and _LEFT_TORCH.search(text):
        return (
            "forward() leaves torch here, so nothing after it can be traced: use torch's "
            "operations, or compute it before and pass it as an input."
        )
    if isinstance(error, (RuntimeError, AssertionError)) and re.search("cuda|CUDA|device", text):
        return (
            "Leave devices out of forward(): torch tensors are on the CPU here, and the program "
            "runs on the emulated device wherever they were."
        )
    same = type(eager) is type(error) and str(eager) == str(error)
    python = (AttributeError, NameError, TypeError, ZeroDivisionError, KeyError)
    if same or isinstance(error, python):
        if eager is not None:
            return "The error is in forward() itself: calling the model on the host raises it too."
        return (
            "Calling the model on the host does not raise it: torch's exporter cannot trace what "
            "forward() does there. Write it in other operations of torch."
        )
    return "forward() must be one static graph of torch operations on its tensor arguments."


def _is_quantized(module: torch.nn.Module) -> bool:
    return type(module).__module__.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic"))


def _eager_text(error: Exception | None) -> str:
    """What eager torch says of a call: its texts are the ones people know.

    Fake tensors word shape errors differently.
    """
    known = isinstance(error, (RuntimeError, ValueError, IndexError))
    return _essence(str(error)) if known and not isinstance(error, SambaError) else ""


def _eager_error(model: torch.nn.Module, given: TraceInputs) -> Exception | None:
    """What the same call raises on the host; None if it returns.

    Buffers, attributes and the random state are left as they are.
    """
    state, snapshot = {k: v.clone() for k, v in model.named_buffers()}, Snapshot(model)
    values = [
        (t, t.detach().clone()) for t in snapshot.tensors.values() if getattr(t, "_has_data", True)
    ]
    try:
        with put_back(model), warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")  # they have been shown
            # The stand-ins are unwritten memory, which is not a valid index for an embedding.
            args, kwargs = given.call_with(
                torch.zeros(t.tensor.shape, dtype=t.tensor.dtype) for t in given.tensors
            )
            torch.func.functional_call(model, state, args, kwargs)
    except Exception as error:  # ours too: a second call of forward() may be what is refused
        raise_error_of_handler(error)
        return error
    finally:
        snapshot.put_back()
        with torch.no_grad():
            for tensor, value in values:
                tensor.copy_(value)
    return None


def _where(tb: TracebackType | None, model: torch.nn.Module) -> str:
    names = {id(module): name for name, module in model.named_modules()}
    path, line = "", ""
    for frame, lineno in traceback.walk_tb(tb):
        owner = frame.f_locals.get("self")
        if isinstance(owner, torch.nn.Module) and id(owner) in names:
            path = names[id(owner)] or type(owner).__name__
        filename = frame.f_code.co_filename
        if is_user_file(filename) and (path or line):
            line = f"{filename}:{lineno}"
    root = type(model).__name__
    module = root if path in ("", root) else f"{root}.{path}"
    return f"{line} (in module {module})" if line else f"module {module}"
