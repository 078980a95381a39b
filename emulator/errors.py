"""Errors of the device: what is not on it, and what cannot be run."""

from __future__ import annotations

import linecache
import os
from collections.abc import Sequence
from dataclasses import dataclass

from pef_schema.errors import SambaError, quoted
from pef_schema.module_paths import plain_path
from pef_schema.printable import some_of
from pef_schema.program import Node

_SHOWN = 20
"""Problems that a message lists; the error's ``problems`` holds all of them."""


class DeviceError(SambaError):
    """Base of all errors of the emulated device."""


class ForkedProcess(DeviceError, RuntimeError):
    """A process that was forked while a device was open asks for the device.

    Attributes:
        operation: What it asked for.
        parent: The process that has the device.
    """

    deviation = "forked-process"

    def __init__(self, *, operation: str, parent: int) -> None:
        self.operation, self.parent = operation, parent
        super().__init__(
            f"{operation}: process {os.getpid()} was forked from process {parent} while a device "
            "was open there, and has none of the threads that run it. Use the device in the "
            "process that opened it, or start the other one with "
            'multiprocessing.get_context("spawn") and load the PEF there.'
        )


class NotWritten(DeviceError):
    """A run needs regions that the host never wrote.

    Attributes:
        names: Region names.
        role: Their role in words.
    """

    def __init__(self, *, names: Sequence[str], role: str) -> None:
        self.names, self.role = tuple(names), role
        hint = {
            "input": "Pass them in input_tensors at least once.",
            "activation": "Run the FWD sections first: BCKWD sections read their results.",
            "output": "Run the FWD sections first: they compute it.",
            "cotangent": "Run the BCKWD sections from the last to the first.",
        }.get(
            role, "Transfer them first: trace_graph(transfer_device=True) or session.to_rdu(model)."
        )
        super().__init__(
            f"device memory: {role} region(s) {some_of(names, 8)} hold no data. {hint}"
        )


class LostMemory(DeviceError):
    """Device memory was given to an executable that failed, and there is nothing in its place.

    Attributes:
        names: Regions whose contents are lost.
        roles: Their roles in words.
    """

    def __init__(self, *, names: Sequence[str], roles: Sequence[str]) -> None:
        self.names, self.roles = tuple(names), tuple(roles)
        named = [f"{role} {name}" for name, role in zip(names, roles, strict=True)]
        advice = {
            "weight": "session.to_rdu(model)",
            "buffer": "session.to_rdu(model)",
            "optimizer state": "session.optimizers_to_rdu(optimizer)",
            "seed": "session.reset_random_generator()",
        }
        todo = list(dict.fromkeys(advice[role] for role in roles if role in advice))
        super().__init__(
            f"device memory: a failed run has destroyed the contents of {some_of(named, 8)}. "
            + (
                f"Load the last checkpoint into the model, or use the host's values, and call "
                f"{', '.join(todo)}."
                if todo
                else "Write them again before they are used."
            )
        )


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
        near = f" Similar names: {', '.join(close)}." if close else ""
        super().__init__(
            f"tensor {name!r:.200}: the program has no tensor or region of that name.{near}"
        )

    def __str__(self) -> str:
        return str(self.args[0])


class NoGradientRegion(DeviceError):
    """A tensor has no gradient in the program."""

    def __init__(self, *, name: str) -> None:
        self.name = name
        super().__init__(
            f"gradient of {quoted(name)}: the program computes none; it was compiled for "
            "inference, with requires_grad=False for this tensor, or no output depends on it. "
            "Set requires_grad before compiling and compile again."
        )


class RegionMismatch(DeviceError):
    """Data written to a region does not have its shape and dtype."""

    def __init__(self, *, name: str, found: str, wanted: str, hint: str = "") -> None:
        self.name, self.found, self.wanted, self.hint = name, found, wanted, hint
        advice = hint or (
            "pass tensors of that form (drop_last=True for a loader's last batch), compile again "
            "for the new one, or evaluate with samba.session.evaluator(model), which takes batches "
            "of any size."
        )
        super().__init__(
            f"tensor {quoted(name)}: found {found}, the program was compiled for {wanted}. "
            f"Shapes and dtypes are fixed when a model is compiled: {advice}"
        )


class UnknownSection(DeviceError):
    """A requested section or section type is not in the program."""

    def __init__(
        self, *, found: Sequence[object], wanted: Sequence[object], what: str, hint: str = ""
    ) -> None:
        self.found, self.wanted, self.what, self.hint = tuple(found), tuple(wanted), what, hint
        super().__init__(
            f"{what}: found {some_of(found, 8, quoted)}; "
            f"this program has {', '.join(map(str, wanted))}" + (f". {hint}" if hint else "")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A part of a program that the device cannot run.

    Args:
        where: The part.
        reason: What is wrong with it.
        node: Position of the node in its graph, -1 where it is none.
        op: The node's operation.
        module: Module path of the node.
        source: ``file:line`` of the node in the user's code, empty if unknown.
    """

    where: str
    reason: str
    node: int = -1
    op: str = ""
    module: str = ""
    source: str = ""

    @classmethod
    def of(cls, node: Node, *, where: str, reason: str, index: int) -> Problem:
        """A problem of a node."""
        return cls(
            where=where,
            reason=reason,
            node=index,
            op=node.op,
            module=node.module,
            source=node.source,
        )

    def __str__(self) -> str:
        op = f", {self.op}" if self.op else ""
        module = f" in {plain_path(self.module)}" if self.module else ""
        source = f" at {self.source}" if self.source else ""
        return f"{self.where}{op}{module}{source}: {self.reason}"


class CannotRun(DeviceError):
    """Parts of a program are nothing that the device can run.

    Attributes:
        program: Name of the program.
        problems: All of them, each a :class:`Problem`.
    """

    def __init__(self, *, program: str, problems: Sequence[Problem]) -> None:
        self.program, self.problems = program, tuple(problems)
        lines = "".join(f"\n  {problem}" for problem in self.problems[:_SHOWN])
        if len(self.problems) > _SHOWN:
            lines += f"\n  ... and {len(self.problems) - _SHOWN} more"
        count = len(self.problems)
        super().__init__(
            f"program {program}: the device cannot run {count} part{'s' * (count != 1)} of it:"
            f"{lines}\nThe program that made it is at fault; recompile with this package."
        )


class NoGraph(DeviceError):
    """The program has no graph to run."""

    def __init__(self, *, program: str) -> None:
        self.program = program
        super().__init__(
            f"program {program}: it has no graph, so there is nothing to run. Compile a model."
        )


class PlanError(DeviceError):
    """Steps of a program cannot be compiled or run.

    Attributes:
        steps: Their sections, by name.
        doing: What failed, in words.
        reason: What was said about it.
    """

    def __init__(self, *, steps: Sequence[str], doing: str, reason: str) -> None:
        self.steps, self.doing, self.reason = tuple(steps), doing, reason
        super().__init__(f"{doing} {some_of(self.steps, 8) or 'no section'}: {reason}")


class OutOfMemory(DeviceError, MemoryError):
    """A program needs more memory than the device may take.

    Attributes:
        what: What needs it.
        need: Bytes that it needs.
        have: Bytes that the device may take.
    """

    def __init__(self, *, what: str, need: int, have: int) -> None:
        self.what, self.need, self.have = what, need, have
        super().__init__(
            f"{what} needs {_bytes(need)}, but the device may use {_bytes(have)}. Use smaller "
            "batches or a smaller model, or raise the limit: EMULATOR_MEMORY_LIMIT=BYTES."
        )


def _bytes(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**27 else f"{count} bytes"


class LoweringError(DeviceError):
    """An op's lowering failed or gave another shape than the graph says."""

    def __init__(self, *, op: str, source: str, module: str, reason: str) -> None:
        self.op, self.source, self.module, self.reason = op, source, module, reason
        place = f" in {plain_path(module)}" if module else ""
        place += f" at {source}" if source else ""
        super().__init__(f"{op}{place}: {reason}")


class OpLimit(LoweringError):
    """An op is asked for more than the device computes with, where torch has no bound.

    Attributes:
        argument: Which argument, or what follows from several, in words.
        found: How much is asked for.
        most: The most that is allowed.
    """

    deviation = "op-limit"

    def __init__(
        self,
        *,
        argument: str,
        found: int,
        most: int,
        op: str = "",
        source: str = "",
        module: str = "",
    ) -> None:
        self.argument, self.found, self.most = argument, found, most
        super().__init__(
            op=op,
            source=source,
            module=module,
            reason=f"{argument} is {found}; the device computes with {most} at most. "
            "Ask for less, or divide the tensor.",
        )

    def at(self, *, op: str, source: str, module: str) -> OpLimit:
        """The same error with the node that it came from."""
        return OpLimit(
            argument=self.argument,
            found=self.found,
            most=self.most,
            op=op,
            source=source,
            module=module,
        )


class IndexOutOfRange(DeviceError, IndexError):
    """An index is outside the bounds that torch allows.

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
            f"{what} holds {index:g} at {list(position)}, out of range for {op} in "
            f"{plain_path(module)}{line}: it must be {allowed}. Nothing was run"
            + ("." if tensor else ", or the run has left device memory unchanged.")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchLine:
    """A branch of ``forward`` that has gone the other way than the graph.

    Args:
        source: ``file:line`` of the user's code, empty if unknown.
        module: Module path.
        taken: What the condition was when the graph was traced.
    """

    source: str
    module: str
    taken: bool


class OtherBranch(DeviceError):
    """In a run a branch of ``forward`` would have gone the other way than the graph was traced.

    Attributes:
        branches: The branches, in the order of the graph.
        source: ``file:line`` of the first of them.
        module: Its module path.
    """

    deviation = "other-branch"

    def __init__(self, *, branches: Sequence[BranchLine]) -> None:
        self.branches = tuple(branches)
        self.source, self.module = branches[0].source, branches[0].module
        lines = [
            f"  {b.source or 'an unknown line'} (in {plain_path(b.module)}){_text_of(b.source)}: "
            f"the condition was {not b.taken}, but the graph was traced with {b.taken}"
            for b in branches
        ]
        super().__init__(
            "a run since the last check took another branch of forward() than the traced one:\n"
            + "\n".join(lines)
            + "\nIts outputs and gradients differ from torch's. Weights, buffers and optimizer "
            "state are as they were before it; later runs, until this error, have not changed "
            "them either. Check the inputs of that run, then continue."
        )


def _text_of(source: str) -> str:
    """The text of a line, if its file is available."""
    path, _, number = source.rpartition(":")
    text = linecache.getline(path, int(number)).strip() if number.isdigit() else ""
    return f" `{quoted(text)[1:-1]}`" if text else ""
