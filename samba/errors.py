"""Errors of the host side: what a script passed, or asked for too early."""

from __future__ import annotations

from collections.abc import Sequence

from pef_schema.errors import SambaError, quoted

__all__ = [
    "ArgumentError",
    "ConversionError",
    "DeviceAccessError",
    "MissingPackage",
    "NoAutograd",
    "NoGradient",
    "NoHostData",
    "NotCopyable",
    "NotLoaded",
    "NotTraced",
    "SambaError",
    "SessionInUse",
    "UnknownTensor",
    "UnsupportedKeyword",
    "called",
    "described",
    "literal",
]

_LONGEST = 1000
"""Characters of a part of a message; the error's attributes hold all of it."""


def literal(value: object) -> str:
    """The beginning of a value as Python writes it, on one line, for messages.

    Args:
        value: Anything, also what cannot be written out.

    Example:
        >>> literal(0.5), literal("a\\0b"), literal(10**5000)
        ('0.5', "'a\\\\x00b'", '(not to be written out)')
    """
    try:
        text = f"{value!r:.60}"
    except Exception:  # what a script's own class does, or too many digits
        return "(not to be written out)"
    return text if text.isprintable() else ascii(text)[1:-1]


def described(value: object) -> str:
    """Type and value of what a script has passed, for messages.

    Args:
        value: Anything, also what cannot be written out.

    Example:
        >>> described(0.5), described(10**5000)
        ('float 0.5', 'int (not to be written out)')
    """
    return f"{type(value).__name__} {literal(value)}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


class ArgumentError(SambaError, ValueError):
    """An argument of a samba function has a value that it cannot take.

    Args:
        where: The function and the argument.
        found: What was passed.
        wanted: What would have been right.
        hint: What to do; empty if ``wanted`` says it all.
        deviation: Name of the row of ``docs/deviations.md`` if torch or a page allows it.
    """

    def __init__(
        self, *, where: str, found: str, wanted: str, hint: str = "", deviation: str = ""
    ) -> None:
        self.deviation = deviation
        self.where = where
        self.found = found
        self.wanted = wanted
        self.hint = hint
        advice = f" {hint}" if hint else ""
        super().__init__(f"{_cut(where)}: found {_cut(found)}, expected {wanted}.{advice}")


class ConversionError(ArgumentError, TypeError):
    """An object cannot become a SambaTensor, a SambaParameter or a torch tensor."""


class UnsupportedKeyword(SambaError, TypeError):
    """A function was given a keyword that torch has and SambaFlow does not support.

    Args:
        function: Name of the function.
        found: The keywords.
        wanted: Those that it supports.
    """

    deviation = "unsupported-keyword"

    def __init__(self, *, function: str, found: tuple[str, ...], wanted: tuple[str, ...]) -> None:
        self.function, self.found, self.wanted = function, found, wanted
        super().__init__(
            f"{function}({', '.join(found)}): not supported on the RDU. "
            f"Leave out all keywords but {', '.join(wanted)}."
        )


class NoHostData(SambaError, RuntimeError):
    """An operation needs the values of an empty SambaTensor.

    Args:
        operation: What was asked of the tensor.
        name: Name of the tensor; empty if it has none.
        shape: Its shape.
    """

    def __init__(self, *, operation: str, name: str, shape: tuple[int, ...]) -> None:
        self.operation = operation
        self.name = name
        self.shape = shape
        whose = quoted(name) if name else "(unnamed)"
        super().__init__(
            f"{operation}: SambaTensor {whose} of shape {shape} holds a shape and a dtype "
            "but no values. Call materialize_() on it (it needs a materializer), or "
            "assign a tensor to its .data."
        )


class MissingPackage(SambaError, ImportError):
    """Something needs a package that is not installed.

    Args:
        what: What needs it.
        package: The package.
        extra: The extra of this project that brings it.
    """

    def __init__(self, *, what: str, package: str, extra: str) -> None:
        self.what, self.package, self.extra = what, package, extra
        super().__init__(
            f"{what} needs the package {package}, which is not installed. "
            f"Install it with: pip install 'sambaflow-emulator[{extra}]'"
        )


def called(operation: str) -> str:
    """A function as scripts call it.

    Args:
        operation: A method of the session, or a function of another package with its path.

    Example:
        >>> called("run()"), called("utils.measure_sections()")
        ('session.run()', 'utils.measure_sections()')
    """
    elsewhere = operation.startswith(("utils.", "distributed."))
    return operation if elsewhere else f"session.{operation}"


class NotLoaded(SambaError, RuntimeError):
    """The session has no program on the device."""

    def __init__(self, *, operation: str) -> None:
        self.operation = operation
        super().__init__(
            f"samba.{called(operation)}: nothing is on the device. "
            "Call samba.utils.trace_graph(model, inputs, optimizer, pef=<path>) first."
        )


class SessionInUse(SambaError, RuntimeError):
    """A session is asked for something in the middle of a call with which it does not go.

    Args:
        operation: What was asked for.
        problem: What the session is doing, as a sentence with its advice.
    """

    deviation = "run-within-a-run"

    def __init__(self, *, operation: str, problem: str) -> None:
        self.operation = operation
        super().__init__(f"samba.session.{operation}: {problem}")


class NotCopyable(SambaError, TypeError):
    """A session, or what it has on the device, is to be copied or pickled.

    Args:
        what: What it is.
    """

    def __init__(self, *, what: str) -> None:
        self.what = what
        super().__init__(
            f"a {what} cannot be copied or pickled: it has memory on the device. Copy or pickle "
            "the model after samba.session.to_cpu(model), and give another process the path of the "
            "PEF for a trace_graph of its own."
        )


class DeviceAccessError(SambaError, RuntimeError):
    """A tensor's device memory cannot be read or written.

    Args:
        operation: What was asked, e.g. ``"sn_data"``.
        name: Name of the tensor; empty if it has none.
        problem: What was found, as a sentence with its advice.
    """

    def __init__(self, *, operation: str, name: str, problem: str) -> None:
        self.operation = operation
        self.name = name
        whose = quoted(name) if name else "an unnamed SambaTensor"
        super().__init__(f"{operation} of {whose}: {problem}")


class NotTraced(DeviceAccessError):
    """Nothing is on the device yet."""

    def __init__(self, *, operation: str, name: str) -> None:
        super().__init__(
            operation=operation,
            name=name,
            problem="nothing is on the device yet. Call samba.utils.trace_graph(...) first.",
        )


class UnknownTensor(DeviceAccessError, KeyError):
    """The device holds no tensor of that name.

    Args:
        operation: What was asked.
        name: The name; empty for a tensor without one.
        near: Names of tensors that it may be meant for.
    """

    def __init__(self, *, operation: str, name: str, near: Sequence[str] = ()) -> None:
        if name:
            problem = (
                "the device holds no tensor of that name. Only parameters, buffers, inputs and "
                "outputs of the traced model are there; see samba.session.get_weight_names()."
            )
            if near:
                problem += f" Similar names: {', '.join(near)}."
        else:
            problem = (
                "the device finds tensors by name and this one has none. Make it with name=..., "
                "or set its sn_name to that of a traced tensor."
            )
        super().__init__(operation=operation, name=name, problem=problem)

    def __str__(self) -> str:
        return str(self.args[0])


class NoAutograd(SambaError, RuntimeError):
    """``backward()`` of a tensor that torch's autograd knows nothing of.

    Args:
        name: Name of the tensor; empty if it has none.
    """

    def __init__(self, *, name: str) -> None:
        self.name = name
        whose = quoted(name) if name else "(unnamed)"
        super().__init__(
            f"backward() of SambaTensor {whose}: it does not require grad, so torch has no "
            "graph of it. What session.run returns was computed on the device, and "
            "session.run has run the backward pass too, where the PEF trains: gradients are in "
            "parameter.sn_grad, and the optimizer has made its step. Leave backward() and "
            "optimizer.step() out."
        )


class NoGradient(DeviceAccessError):
    """The program keeps no gradient for a tensor."""

    deviation = "no-gradient"

    def __init__(self, *, operation: str, name: str) -> None:
        super().__init__(
            operation=operation,
            name=name,
            problem=(
                "the program holds no gradient for it; it was compiled with requires_grad=False "
                "or for inference. Set requires_grad_(True) before samba.session.compile(...) "
                "and trace_graph(...), and compile again."
            ),
        )
