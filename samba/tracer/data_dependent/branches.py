"""Branches on values: those whose other side is an error, and those that follow from constants.

``forward`` is traced on tensors without values. Where Python asks for the truth of one, or compares
what ``int`` or ``float`` gives of one:

* what follows from constants and unchanged buffers is computed (``known_values``);
* where one side of an ``if`` only raises, the graph has the other side;
* where the condition only asks whether numbers are finite, the graph has the side for finite ones.

In the last two cases the graph gets a check, so that a run that would have gone the other way ends
with an error (``emulator/lowering/branch_checks.py``). All other branches are refused.
"""

from __future__ import annotations

import ast
import linecache
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType, MappingProxyType
from typing import Any, NoReturn

import torch

from pef_schema.printable import some_of
from samba.support.deviations import Deviations
from samba.support.marks import marked
from samba.tracer.custom_gradients import GradientRecorder
from samba.tracer.data_dependent.known_values import KnownValues, where_finite
from samba.tracer.data_dependent.loops import HitLoops
from samba.tracer.data_dependent.source_tests import (
    ASKED,
    Items,
    Tested,
    asking,
    compared_at,
    is_caught,
    number_call,
    object_use,
    only_reads,
    tested_at,
)
from samba.tracer.data_dependent.taken_numbers import (
    COMPARES,
    SYMBOLS,
    Comparison,
    Kind,
    Symbol,
    TakenNumbers,
    all_close,
    equal,
    is_number,
    joined,
    number_of,
)
from samba.tracer.errors import DataDependentBranch
from samba.tracer.marker_ops import check
from samba.tracer.torch_internals import ASSERTIONS, is_transformed, node_of, outside_of_trace
from samba.tracer.torch_patches import with_numbers
from samba.tracer.user_code import SOURCE, asking_frame, calling_line, is_user_file, users_callers

T = torch.Tensor

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

_OF_TWO: Mapping[Any, Callable[..., T | bool]] = MappingProxyType(
    {torch.equal: equal, T.equal: equal, torch.allclose: all_close, T.allclose: all_close}
)
"""Functions that give Python a truth about two tensors, and what gives a tensor of it."""


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
        self._numbers = TakenNumbers()
        self._in_forward: Callable[[], AbstractContextManager[None]] = nullcontext
        self._lines: dict[str, None] = {}

    @contextmanager
    def deciding(self, in_forward: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
        """While active, numbers that were taken out of tensors can be branched on, too.

        Args:
            in_forward: Gives what code of ``forward`` runs in that is evaluated for a check.
        """
        self._in_forward = in_forward
        with with_numbers(self._truth_of_symbol, self._number_of_symbol):
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

        Raises:
            DataDependentBranch: If ``int`` or ``float`` asks for one that is not known.
        """
        if func in _OF_TWO:
            condition = _OF_TWO[func](*args, **kwargs)
            return self.truth(condition) if isinstance(condition, T) else condition
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
        if known is None and number in (int, float):
            return self._number(args[0], asking_frame(), number)
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
        if isinstance(number, SYMBOLS):
            self._refuse_object_use()
            self._numbers.note(tensor, number)

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

    def _truth_of_symbol(self, condition: torch.SymBool) -> bool:
        frame = asking_frame()
        users = frame is not None and is_user_file(frame.f_code.co_filename)
        if users and not self._is_elsewhere():
            tensor = self._numbers.tensor_of(condition)
            decided = None if tensor is None else self._decided(tensor, frame)
            if decided is not None:
                return decided
        return condition.node.bool_()

    def _number_of_symbol(self, symbol: Symbol) -> int | float | None:
        frame = asking_frame()
        if frame is None or not is_user_file(frame.f_code.co_filename) or self._is_elsewhere():
            return None
        called = number_call(frame)
        tensor = None if called is None else self._numbers.tensor_of(symbol)
        if called is None or tensor is None:
            return None
        # A whole number is one for float, too, which asks for an index.
        return self._number(tensor, frame, int if isinstance(symbol, torch.SymInt) else called[1])

    # -- which side ----------------------------------------------------------------

    def _decided(self, condition: T, frame: FrameType | None) -> bool | None:
        if frame is None or self._is_elsewhere():
            return None
        return self._side(condition, tested_at(frame), frame)

    def _side(self, condition: T, tested: Tested | None, frame: FrameType) -> bool | None:
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
                if not is_every and outer.values[-1] is not inner:
                    return self._one_of(condition, wanted, tested, outer, inner, frame)
        if tested.items is not None:
            return self._each_item(condition, tested, wanted)
        if tested.is_first and not wanted:
            # All comparisons in a row together are not to be true, and this is the first.
            value = self._value(tested.leaf, None, condition, frame)
            if not isinstance(value, T):
                return bool(value)
            condition = value
        self._check(condition, wanted)
        return wanted

    def _each_item(self, condition: T, tested: Tested, wanted: bool) -> bool:
        """What each of several values has to be for a condition that asks for one after another."""
        each = tested.items is not Items.ANY
        if wanted is (tested.items is not Items.ALL):
            _refuse_items(tested)
        self._check(condition, each)
        return each

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
        if tested.items is not None:
            _refuse_items(tested)
        given = None if tested.is_first else tested.leaf
        parts = outer.values[outer.values.index(inner) :]
        whole = _joined(outer, (self._value(part, given, condition, frame) for part in parts))
        if isinstance(whole, T):
            self._check(whole, wanted)
        # The value of the condition itself that makes this outer part of the test what is wanted.
        for entry in tested.path[tested.path.index(outer) + 1 :]:
            if isinstance(entry, ast.UnaryOp):
                wanted = not wanted
        return wanted

    def _value(self, part: ast.expr, given: ast.expr | None, condition: T, frame: FrameType) -> Any:
        """Part of a test: a tensor of one bool, or what Python has.

        Args:
            part: The part.
            given: The part whose value is known; None if there is none.
            condition: That value.
            frame: The frame that asked for it.
        """
        if part is given:
            return condition.reshape(()).to(torch.bool)
        if isinstance(part, ast.Compare) and len(part.ops) > 1:
            terms = [part.left, *part.comparators]
            pairs: list[ast.expr] = [
                ast.copy_location(ast.Compare(left=left, ops=[op], comparators=[right]), part)
                for left, op, right in zip(terms, part.ops, terms[1:], strict=False)
            ]
            whole = ast.copy_location(ast.BoolOp(op=ast.And(), values=pairs), part)
            return self._value(whole, given, condition, frame)
        if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not):
            value = self._value(part.operand, given, condition, frame)
            return torch.logical_not(value) if isinstance(value, T) else not value
        if isinstance(part, ast.BoolOp):
            return _joined(part, (self._value(p, given, condition, frame) for p in part.values))
        return self._truth(self._evaluated(part, frame))

    def _evaluated(self, part: ast.expr, frame: FrameType) -> Any:
        """An expression of ``forward`` that Python has not come to yet, and will not come to."""
        whole = asking(part)
        # As one: comprehensions see only the global names of an expression.
        names = {**frame.f_globals, **frame.f_locals, ASKED: self._asked}
        with self._in_forward():
            code = compile(whole, "<a condition of forward>", "eval")
            return eval(code, names)  # noqa: S307  # forward's own code

    def _truth(self, value: Any) -> Any:
        """The truth of a value of ``forward``: a tensor of one bool, or what Python has."""
        if isinstance(value, SYMBOLS):
            tensor = self._numbers.tensor_of(value)
            value = value if tensor is None else tensor
        if isinstance(value, T):
            known = self._known(value, bool)
            return known if known is not None else value.reshape(()).to(torch.bool)
        return value

    def _asked(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function that gives Python what it needs, or a tensor in the place of that."""
        if isinstance(getattr(function, "__self__", None), T):
            function, args = getattr(T, function.__name__), (function.__self__, *args)
        if function in _OF_TWO:
            return _OF_TWO[function](*args, **kwargs)
        if function in (any, all):
            return joined(map(self._truth, *args), is_any=function is any)
        value = args[0] if len(args) == 1 else None
        if isinstance(value, SYMBOLS):
            value = self._numbers.tensor_of(value)
        if isinstance(value, T) and function in (bool, torch.is_nonzero, T.is_nonzero):
            return self._truth(value)
        if isinstance(value, T) and function in (int, float):
            return number_of(value, function)
        return function(*args, **kwargs)

    # -- numbers that are compared ---------------------------------------------------

    def _number(self, tensor: T, frame: FrameType | None, kind: Kind) -> int | float | None:
        """What ``int`` or ``float`` gives, where a number with one outcome of a test does."""
        if frame is None or self._is_elsewhere():
            return None
        called = number_call(frame)
        test = None if called is None or tensor.is_complex() else self._compared(frame, called[0])
        number = None if test is None else self._outcome(tensor, *test, frame, kind)
        if number is None:
            raise _number_is_asked_for(frame, kind if called is None else called[1])
        if kind is int and tensor.is_floating_point():
            self._check(tensor.isfinite(), True)  # int raises for others
        return number

    def _outcome(
        self, tensor: T, tested: Tested, compared: Comparison, frame: FrameType, kind: Kind
    ) -> int | float | None:
        """A number for which a comparison is what it is to be; None if that is not known."""
        condition = compared.outcome(number_of(tensor, kind, exact=compared.has_floats))
        side = self._side(condition, tested, frame) if isinstance(condition, T) else condition
        return None if side is None else compared.number_with(side, kind)

    def _compared(self, frame: FrameType, call: ast.Call) -> tuple[Tested, Comparison] | None:
        """The test and what a number is compared with; None if that is not a number."""
        tested = compared_at(frame, call)
        if tested is None or not isinstance(tested.leaf, ast.Compare):
            return None if tested is None else (tested, Comparison(terms=(), compares=()))
        leaf, terms = tested.leaf, list[Any]()
        compares = [COMPARES[type(op)] for op in leaf.ops if type(op) in COMPARES]
        for term in (leaf.left, *leaf.comparators):
            if term is not call and not only_reads(term):
                return None
            terms.append(None if term is call else self._evaluated(term, frame))
        numbers = all(term is None or is_number(term) for term in terms)
        if not numbers or len(compares) < len(leaf.ops):
            return None
        return tested, Comparison(terms=tuple(terms), compares=tuple(compares))

    def _check(self, condition: T, taken: bool) -> None:
        line = calling_line()
        with marked(SOURCE, line):
            check(condition.detach().reshape(()), taken)
        self._lines.setdefault(line, None)


def _joined(whole: ast.BoolOp, values: Iterator[Any]) -> Any:
    """The truth of several parts of a test together."""
    return joined(values, is_any=isinstance(whole.op, ast.Or))


def _refuse_items(tested: Tested) -> NoReturn:
    """Refuse a test of which one of several tensors decides, which Python asks for one by one."""
    name = "any" if tested.items is Items.ANY else "all"
    raise DataDependentBranch(
        where=calling_line(),
        reason="forward() raises depending on the values of several tensors, which Python asks for "
        f"one after the other: {ast.unparse(tested.leaf)}",
        hint=f"Make one tensor of them: torch.stack([...]).{name}() in place of {name}([...])."
        if isinstance(tested.leaf, ast.Call)
        else "Compare tensors: torch.equal(t, torch.tensor([...])) in place of lists.",
    )


def _number_is_asked_for(frame: FrameType, kind: Kind) -> DataDependentBranch:
    name = kind.__name__
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return DataDependentBranch(
        where=calling_line(),
        reason=f"forward() depends on the value of a tensor: {line}",
        hint=f"A compiled graph is static, and {name}() asks for a number. Compute with the tensor "
        f"itself: t >= n in place of {name}(t) >= n, x * t in place of x * {name}(t), "
        "torch.isnan(t) in place of math.isnan(t); or make it a Python value.",
    )
