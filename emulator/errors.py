"""Errors of the device: what is not on it, and what cannot be run."""

from __future__ import annotations

from collections.abc import Sequence

from pef_schema.errors import SambaError


class DeviceError(SambaError):
    """Base of all errors of the emulated device."""


class NotWritten(DeviceError):
    """A run needs regions that the host never wrote.

    Attributes:
        names: Region names.
        role: Their role in words.
    """

    def __init__(self, *, names: Sequence[str], role: str) -> None:
        self.names, self.role = tuple(names), role
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        hint = {
            "input": "Pass them in input_tensors at least once.",
            "activation": "Run the FWD sections first: BCKWD sections read what they leave.",
            "output": "Run the FWD sections first: they compute it.",
            "cotangent": "Run the BCKWD sections from the last to the first.",
        }.get(
            role, "Transfer them first: trace_graph(transfer_device=True) or session.to_rdu(model)."
        )
        super().__init__(f"device memory: {role} region(s) {shown} hold no data. {hint}")


class NotSeeded(DeviceError):
    """A backward pass would start from nothing: no gradient of an output was written.

    Attributes:
        names: Outputs of which one needs a gradient.
    """

    def __init__(self, *, names: Sequence[str]) -> None:
        self.names = tuple(names)
        super().__init__(
            f"BCKWD: no gradient was given for any of the outputs {', '.join(names)}, and "
            "trace_graph(init_output_grads=False) initialises none. Set output.sn_grad, or call "
            "samba.utils.init_output_grads(model.output_tensors), before session.run(...)."
        )


class UnknownName(DeviceError, KeyError):
    """A name is not in the program."""

    def __init__(self, *, name: str, close: Sequence[str]) -> None:
        self.name, self.close = name, tuple(close)
        near = f" Close names: {', '.join(close)}." if close else ""
        super().__init__(
            f"tensor {name!r}: the program has no tensor or region of that name.{near}"
        )

    def __str__(self) -> str:
        return str(self.args[0])


class NoGradientRegion(DeviceError):
    """A tensor has no gradient in the program."""

    def __init__(self, *, name: str) -> None:
        self.name = name
        super().__init__(
            f"gradient of {name}: the program computes none; it was compiled for inference, with "
            "requires_grad=False for this tensor, or no output depends on it. "
            "Set requires_grad before compiling and compile again."
        )


class RegionMismatch(DeviceError):
    """Data written to a region does not have its shape and dtype."""

    def __init__(self, *, name: str, found: str, wanted: str, hint: str = "") -> None:
        self.name, self.found, self.wanted, self.hint = name, found, wanted, hint
        advice = hint or (
            "pass tensors of that form (drop_last=True for a loader's last batch) or compile again "
            "for the new one."
        )
        super().__init__(
            f"tensor {name}: found {found}, the program was compiled for {wanted}. "
            f"Shapes and dtypes are fixed when a model is compiled: {advice}"
        )


class UnknownSection(DeviceError):
    """A requested section or section type is not in the program."""

    def __init__(
        self, *, found: Sequence[object], wanted: Sequence[object], what: str, hint: str = ""
    ) -> None:
        self.found, self.wanted, self.what, self.hint = tuple(found), tuple(wanted), what, hint
        super().__init__(
            f"{what}: found {', '.join(map(str, found))}; "
            f"this program has {', '.join(map(str, wanted))}" + (f". {hint}" if hint else "")
        )


class LoweringError(DeviceError):
    """An op's lowering failed or gave another shape than the graph says."""

    def __init__(self, *, op: str, source: str, module: str, reason: str) -> None:
        self.op, self.source, self.module, self.reason = op, source, module, reason
        place = f" at {source}" if source else ""
        super().__init__(f"{op} in {module}{place}: {reason}")


class IndexOutOfRange(DeviceError, IndexError):
    """An index is none that torch allows.

    Attributes:
        tensor: Name of the input that held it; empty for an index that was computed.
        index: The index.
        position: Where it stands in that tensor.
        allowed: What torch allows, in words.
        op: The operation that was to use it.
        source: ``file:line`` of the operation in the user's code, empty if unknown.
        module: Module path of the operation.
    """

    def __init__(
        self,
        *,
        tensor: str,
        index: float,
        position: Sequence[int],
        allowed: str,
        op: str,
        source: str,
        module: str,
    ) -> None:
        self.tensor, self.index, self.position = tensor, index, tuple(position)
        self.allowed, self.op, self.source, self.module = allowed, op, source, module
        what = f"input {tensor}" if tensor else "a computed index"
        line = f" at {source}" if source else ""
        super().__init__(
            f"{what} holds {index:g} at {list(position)}, out of range for {op} in {module}{line}: "
            f"allowed is {allowed}. Nothing was run"
            + ("." if tensor else ", or the run has left the device as it was.")
        )
