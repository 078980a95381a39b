"""Branches on values: those whose other side is an error, and those that follow from constants.

``forward`` is traced on tensors without values. Where Python asks for the truth of one:

* what follows from constants and unchanged buffers is computed (``known_values``);
* where one side of an ``if`` only raises, the graph has the other side;
* where the condition only asks whether numbers are finite, the graph has the side for finite ones.

In the last two cases the graph gets a check, so that a run that would have gone the other way ends
with an error (``emulator/lowering/branch_checks.py``). All other branches are refused.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType, MappingProxyType
from typing import Any

import torch
from torch.fx.traceback import annotate, preserve_node_meta

from pef_schema.printable import some_of
from samba.support.deviations import Deviations
from samba.tracer.custom_gradients import GradientRecorder
from samba.tracer.data_dependent.known_values import KnownValues, where_finite
from samba.tracer.data_dependent.loops import HitLoops
from samba.tracer.data_dependent.source_tests import Tested, is_caught, object_use, tested_at
from samba.tracer.errors import DataDependentBranch
from samba.tracer.marker_ops import check
from samba.tracer.torch_internals import ASSERTIONS, is_transformed, node_of, outside_of_trace
from samba.tracer.torch_patches import with_truth
from samba.tracer.user_code import SOURCE, asking_frame, calling_line, is_user_file, users_callers

T = torch.Tensor

_NUMBERS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        **{f: f for f in (operator.lt, operator.le, operator.gt, operator.ge)},
        **{f: f for f in (operator.eq, operator.ne, operator.add, operator.sub, operator.mul)},
        **{f: f for f in (operator.truediv, operator.neg, operator.abs)},
        operator.and_: torch.logical_and,
        operator.or_: torch.logical_or,
        torch.sym_not: torch.logical_not,
        torch.sym_float: lambda number: number,
    }
)
"""Operations on numbers taken out of tensors, as operations on those tensors."""


_ASKS: Mapping[Any, Callable[[T], Any]] = MappingProxyType(
    {
        T.__bool__: bool,
        T.is_nonzero: bool,
        torch.is_nonzero: bool,
        T.item: T.item,
        T.__int__: int,
        T.__float__: float,
        T.__index__: operator.index,
        T.__complex__: complex,
    }
)
"""Functions that give Python the value of a tensor."""


class CheckedBranches:
    """Decides the branches of one trace.

    Args:
        model: The model, with tensors that have values.
        recorder: What records gradients of the model's own: checks are for ``forward`` alone.
        loops: Loops whose turns may not take place in a run.
    """

    def __init__(self, model: torch.nn.Module, recorder: GradientRecorder, loops: HitLoops) -> None:
        self._name, self._recorder, self._loops = type(model).__name__, recorder, loops
        self.known = KnownValues(model)
        self._taken: dict[torch.fx.Node, T] = {}
        self._wide: dict[torch.fx.Node, T] = {}
        self._in_forward: Callable[[], AbstractContextManager[None]] = nullcontext
        self._lines: dict[str, None] = {}

    @contextmanager
    def deciding(self, in_forward: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
        """While active, numbers that were taken out of tensors can be branched on, too.

        Args:
            in_forward: Gives what code of ``forward`` runs in that is evaluated for a check.
        """
        self._in_forward = in_forward
        with with_truth(self._truth_of_number):
            yield

    def tell(self, deviations: Deviations) -> None:
        """Say once which branches the graph has one side of.

        Args:
            deviations: What was said of the model already.
        """
        if self._lines:
            deviations.tell(
                "checked-branch",
                f"forward() of {self._name} branches on values of tensors at "
                f"{some_of(list(self._lines))}: the graph holds the branch where numbers are "
                "finite and nothing is raised; a run that would take the other branch ends with "
                "an error that names the line",
            )

    # -- what forward asks for ---------------------------------------------------

    def answer(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What Python gets where it asks for the value of a tensor.

        Args:
            func: A function of torch.
            args, kwargs: What it is called with.

        Returns:
            None if it asks for none, or for one that is not known.
        """
        number = _ASKS.get(func)
        if number is None or len(args) != 1 or kwargs or not isinstance(args[0], T):
            return None
        if number is bool:
            return self.truth(args[0])
        if args[0].numel() != 1 or is_transformed(args[0]):
            return None
        known = self._known(args[0], number)
        if known is None and number is T.item and args[0].dtype is torch.bool:
            return self._healthy(args[0])
        return known

    def _known(self, tensor: T, number: Callable[[T], Any]) -> Any:
        """A number that is the same in every run; None if there is none."""
        value = self.known.of(tensor)
        if value is None:
            return None
        with outside_of_trace():
            return number(value)

    def requires(self, func: Callable[..., Any], args: Any, kwargs: Any) -> bool:
        """Whether a function only raises unless a condition holds, for which there is a check now.

        Args:
            func: A function of torch.
            args, kwargs: What it is called with.
        """
        if func not in ASSERTIONS:
            return False
        condition = args[0] if args else kwargs.get("condition", kwargs.get("input"))
        if not isinstance(condition, T) or condition.numel() != 1 or is_transformed(condition):
            return False
        if self._is_elsewhere() or self.known.of(condition) is not None:
            return False
        self._check(condition, True)
        return True

    def truth(self, condition: T) -> bool | None:
        """The truth of a tensor, as ``forward`` is to see it.

        Args:
            condition: The tensor.

        Returns:
            None if it is not known: torch's exporter says so then.
        """
        if condition.numel() != 1 or is_transformed(condition):
            return None
        known = self._known(condition, bool)
        return known if known is not None else self._decided(condition, asking_frame())

    def note_number(self, tensor: T, number: Any) -> None:
        """Remember which tensor a number was taken out of.

        Args:
            tensor: The tensor.
            number: What ``item()`` gave.
        """
        if isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            self._refuse_object_use()
            node = node_of(number)
            if node is not None:
                self._taken[node[0]] = tensor

    def _refuse_object_use(self) -> None:
        """Refuse a function that looks at the symbolic number itself, and not at its value."""
        frame = next(users_callers(asking_frame()), None)
        use = None if frame is None else object_use(frame)
        if use is not None:
            raise DataDependentBranch(
                where=calling_line(),
                reason="forward() reads a number from a tensor and checks its identity or type: "
                f"{ast.unparse(use)}. While forward() is traced, the number is a symbol.",
                hint="Test the truth of the tensor or the number (if t:), or the tensor's dtype.",
            )

    def _truth_of_number(self, condition: torch.SymBool) -> bool:
        frame = asking_frame()
        users = frame is not None and is_user_file(frame.f_code.co_filename)
        node = node_of(condition) if users else None
        if node is not None and not self._is_elsewhere():
            try:
                tensor = self._on_tensors(node[0])
            except _Foreign:
                tensor = None
            if isinstance(tensor, T):
                decided = self._decided(tensor, frame)
                if decided is not None:
                    return decided
        return condition.node.bool_()

    def _on_tensors(self, node: Any) -> Any:
        """What a number was computed from, computed from the tensors that it came out of."""
        if not isinstance(node, torch.fx.Node):
            if isinstance(node, (bool, int, float)):
                return node
            raise _Foreign
        tensor = self._taken.get(node)
        if tensor is not None:
            # As Python has it: whole numbers, or double precision. One tensor for one number, so
            # that it can be seen that n != n asks for NaN.
            if node not in self._wide:
                wide = torch.float64 if tensor.is_floating_point() else torch.int64
                dtype = tensor.dtype if tensor.dtype is torch.bool else wide
                self._wide[node] = tensor.detach().reshape(()).to(dtype)
            return self._wide[node]
        compute = _NUMBERS.get(node.target)
        if compute is None or node.kwargs:
            raise _Foreign
        return compute(*[self._on_tensors(argument) for argument in node.args])

    # -- which side ----------------------------------------------------------------

    def _decided(self, condition: T, frame: FrameType | None) -> bool | None:
        if frame is None or self._is_elsewhere():
            return None
        tested = tested_at(frame)
        if tested is not None and tested.raises is not None:
            if is_caught(tested.exception, list(users_callers(frame))):
                return None
            return self._not_raising(condition, tested, frame)
        return self._healthy(condition)

    def _healthy(self, condition: T) -> bool | None:
        """What a condition is where numbers are finite, with a check that it is."""
        node = None if self._is_elsewhere() else node_of(condition)
        healthy = None if node is None else where_finite(node[0])
        if healthy is not None:
            self._check(condition, healthy)
        return healthy

    def _is_elsewhere(self) -> bool:
        """Whether what is traced now is a backward pass, or a turn that may not take place."""
        return self._recorder.runs_backward or self._loops.is_within_turn

    def _not_raising(self, condition: T, tested: Tested, frame: FrameType) -> bool:
        """The value of a condition with which a statement does not raise."""
        wanted = not tested.raises
        for outer, inner in zip(tested.path, tested.path[1:], strict=False):
            if isinstance(outer, ast.UnaryOp):
                wanted = not wanted
            elif isinstance(outer, ast.BoolOp):
                # What the whole has to be, all parts have to be, or else one of them.
                is_every = isinstance(outer.op, ast.And) is wanted
                behind = outer.values[outer.values.index(inner) + 1 :]
                if not is_every and behind:
                    return self._one_of(condition, wanted, tested, outer, inner, frame)
        if _is_chain(tested.leaf) and not wanted:
            # All comparisons in a row together are not to be true, and this is the first.
            value = self._value(tested.leaf, None, condition, frame)
            if not isinstance(value, T):
                return bool(value)
            condition = value
        self._check(condition, wanted)
        return wanted

    def _one_of(
        self,
        condition: T,
        wanted: bool,
        tested: Tested,
        outer: ast.BoolOp,
        inner: ast.expr,
        frame: FrameType,
    ) -> bool:
        """One part of several suffices: Python is to stop here, and the check is of all of them."""
        joined = self._value(inner, tested.leaf, condition, frame)
        for part in outer.values[outer.values.index(inner) + 1 :]:
            value = self._value(part, tested.leaf, condition, frame)
            if isinstance(value, T):
                join = torch.logical_and if isinstance(outer.op, ast.And) else torch.logical_or
                joined = join(joined, value) if isinstance(joined, T) else value
            elif bool(value) is wanted:
                return self._stopping(tested, outer, wanted)
        if isinstance(joined, T):
            self._check(joined, wanted)
        return self._stopping(tested, outer, wanted)

    def _stopping(self, tested: Tested, outer: ast.BoolOp, wanted: bool) -> bool:
        """The value of the condition itself that makes an outer part of the test what is wanted."""
        inside = tested.path[tested.path.index(outer) + 1 :]
        for entry in inside:
            if isinstance(entry, ast.UnaryOp):
                wanted = not wanted
        return wanted

    def _value(self, part: ast.expr, leaf: ast.expr | None, condition: T, frame: FrameType) -> Any:
        """Part of a test: a tensor of one bool, or what Python has."""
        if part is leaf and not _is_chain(part):
            return condition.reshape(()).to(torch.bool)
        if isinstance(part, ast.Compare) and _is_chain(part):
            terms = [part.left, *part.comparators]
            pairs: list[ast.expr] = [
                ast.copy_location(ast.Compare(left=left, ops=[op], comparators=[right]), part)
                for left, op, right in zip(terms, part.ops, terms[1:], strict=False)
            ]
            whole = ast.copy_location(ast.BoolOp(op=ast.And(), values=pairs), part)
            return self._value(whole, leaf, condition, frame)
        if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not):
            value = self._value(part.operand, leaf, condition, frame)
            return torch.logical_not(value) if isinstance(value, T) else not value
        if isinstance(part, ast.BoolOp):
            is_and = isinstance(part.op, ast.And)
            joined: Any = is_and
            for entry in part.values:
                value = self._value(entry, leaf, condition, frame)
                if not isinstance(value, T):
                    if bool(value) is not is_and:
                        return value
                elif isinstance(joined, T):
                    joined = (torch.logical_and if is_and else torch.logical_or)(joined, value)
                else:
                    joined = value
            return joined
        return self._evaluated(part, frame)

    def _evaluated(self, part: ast.expr, frame: FrameType) -> Any:
        """An expression of ``forward`` that Python has not come to yet, and will not come to."""
        code = compile(ast.Expression(body=part), "<a condition of forward>", "eval")
        with self._in_forward():
            value = eval(code, frame.f_globals, frame.f_locals)  # noqa: S307  # forward's own code
        if isinstance(value, torch.SymBool):
            node = node_of(value)
            value = value if node is None else self._on_tensors(node[0])
        if isinstance(value, T):
            known = self._known(value, bool)
            return known if known is not None else value.reshape(()).to(torch.bool)
        return value

    def _check(self, condition: T, taken: bool) -> None:
        line = calling_line()
        with preserve_node_meta(), annotate({SOURCE: line}):
            check(condition.detach().reshape(()), taken)
        self._lines.setdefault(line, None)


def _is_chain(part: ast.expr) -> bool:
    """Whether an expression compares more than two values in a row."""
    return isinstance(part, ast.Compare) and len(part.ops) > 1


class _Foreign(Exception):
    """A number comes from elsewhere than out of a tensor of the trace."""
