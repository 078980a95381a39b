"""What the device cannot run is said when it is opened: all of it, with nodes and lines."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from emulator.contract.arguments import _dimension_problems
from emulator.contract.check import check_contract
from emulator.device import Device
from emulator.errors import CannotRun, LoweringError
from pef_schema import DType, Ref, Region, Role, Value, verify
from pef_schema.program import Arg, SectionKind
from samba.compiler.build import build_program
from samba.compiler.sections import CompileOptions
from tests.emulator.contract.mutants import OPS, mutants, outcome, program_of
from tests.emulator.contract.programs import changed_step, training, with_node
from tests.models.zoo import ZOO
from tests.pef_schema.cases import edit
from tests.pef_schema.samples import complex_numbers, custom, inference, training as sample
from tests.tracing import trace

X = Ref(0)
_REASONS: dict[str, tuple[str, tuple[Arg, ...], dict[str, Arg], str]] = {
    "op": ("aten.mull.Tensor", (X, 2.0), {}, "the device has no operation of that name"),
    "many": ("aten.relu.default", (X, X), {}, "2 arguments, it takes 1 at most"),
    "missing": ("aten.mul.Tensor", (X,), {}, "argument other is missing"),
    "keyword": ("aten.mul.Tensor", (X, 2.0), {"beta": 1}, "no argument is called beta"),
    "twice": ("aten.mul.Tensor", (X, 2.0), {"other": 1}, "argument other comes twice"),
    "tensor": ("aten.relu.default", (None,), {}, "argument self is None, expected a tensor"),
    "text": ("aten.relu.default", ("x",), {}, "argument self is a string, expected a tensor"),
    "list": ("aten.relu.default", ((X,),), {}, "argument self is a list with a tensor, expected"),
    "tensors": ("aten.cat.default", (X,), {}, "argument tensors is a tensor, expected a list"),
    "item": ("aten.cat.default", ((X, None),), {}, "a list with None, a tensor, expected a list"),
    "whole": (
        "aten.softmax.int",
        (X, 1.0),
        {},
        "argument dim is a number, expected a whole number",
    ),
    "truth": ("aten.sum.dim_IntList", (X, (0,), 1), {}, "keepdim is a whole number, expected True"),
    "sizes": ("aten.view.default", (X, (2, 1.5)), {}, "argument size is a list with a number, a"),
    "scalar": (
        "aten.add.Tensor",
        (X, X),
        {"alpha": X},
        "argument alpha is a tensor, expected a num",
    ),
    "dtype": (
        "aten.sum.default",
        (X,),
        {"dtype": 3},
        "dtype is a whole number, expected a dtype or",
    ),
    "number": (
        "aten.add.Tensor",
        (X, DType.INT8),
        {},
        "argument other is a dtype, expected a tens",
    ),
    "dim": ("aten.softmax.int", (X, 2), {}, "dim 2 is none of its 2 dimensions"),
    "dims": ("aten.sum.dim_IntList", (X, (0, -3)), {}, "dim -3 is none of its 2 dimensions"),
    "complex": ("aten.relu.default", (1j,), {}, "it does not compute with complex numbers"),
    "parts": ("aten.sum.dim_IntList", (X, (0, 1j)), {}, "a list with a complex number, a whole nu"),
    "deep": (
        "aten.cat.default",
        (((X,),),),
        {},
        "a list with a list, expected a list, each item a",
    ),
}
"""Operation, arguments, keywords, and what is said about them."""


@pytest.mark.parametrize("name", _REASONS)
def test_arguments(name: str) -> None:
    op, args, kwargs, text = _REASONS[name]
    with pytest.raises(CannotRun) as caught:
        Device(with_node(op, args, **kwargs))
    (problem,) = caught.value.problems
    assert text in problem.reason and text in str(caught.value)
    assert (problem.node, problem.op, problem.module) == (0, op, "tiny")
    assert problem.source == "tiny.py:3"


def test_results() -> None:
    none = edit(
        sample(), "graphs.0.nodes.2", op="aten.neg.default", args=(Ref(5),), outputs=(6, -1)
    )
    with pytest.raises(CannotRun, match=r"node 2, aten.neg.default: 2 results, it gives 1"):
        Device(none)
    (node,) = inference().graphs[0].nodes
    program = edit(inference(), "graphs.0", nodes=(node, replace(node, outputs=())))
    verify(program)
    with pytest.raises(CannotRun, match="it has no results"):
        Device(program)


def test_all_problems_at_once() -> None:
    with pytest.raises(CannotRun) as caught:
        Device(sample())
    reasons = [problem.reason for problem in caught.value.problems]
    assert reasons == [
        "the device has no operation of that name",
        "the device has no operation of that name",
        "no option maximize, which SGD reads",
        "no argin momentum, weight_decay, which SGD reads",
    ]
    assert "graph net node 1, test.all_kinds.default in net.loss: the device" in str(caught.value)


def test_backward_reads_what_its_gradients_read() -> None:
    program = training()
    bare = changed_step(program, SectionKind.BCKWD, recompute=())
    step = next(s.steps[0] for s in bare.sections if SectionKind.BCKWD in s.kinds)
    grads = {value.grad_region for value in bare.graphs[0].values}
    seeds = {output.grad_region for output in bare.graphs[0].outputs}
    kept = tuple(r for r in step.reads if r in grads | seeds)
    bare = changed_step(bare, SectionKind.BCKWD, reads=kept)
    verify(bare)
    with pytest.raises(
        CannotRun, match=r"aten.linear.default .*: its gradient needs .*, which is not read"
    ):
        Device(bare)


def test_what_is_computed_again_is_read() -> None:
    program = edit(custom(), "sections.1.steps.0", reads=(3,))
    verify(program)
    with pytest.raises(CannotRun, match=r"node 0, aten.detach.default: it is recomputed from"):
        Device(program)


def test_gradients_that_are_added_to_are_read() -> None:
    program = training()
    step = next(s.steps[0] for s in program.sections if SectionKind.BCKWD in s.kinds)
    assert step.accumulates
    reads = tuple(r for r in step.reads if r not in step.accumulates)
    program = changed_step(program, SectionKind.BCKWD, reads=reads)
    verify(program)
    with pytest.raises(CannotRun, match=r"it adds to 4 gradient\(s\) that it does not read"):
        Device(program)


@pytest.mark.parametrize(
    ("what", "missing"), [("options", "option dampening"), ("argins", "argin lr")]
)
def test_settings_that_the_update_rule_reads(what: str, missing: str) -> None:
    program = training()
    left = getattr(program.optimizers[0], what)[1:]
    program = edit(program, "optimizers.0", **{what: left})
    verify(program)
    with pytest.raises(CannotRun, match=rf"optimizer 0 \(sgd0\): no {missing}, which SGD reads"):
        Device(program)


@pytest.mark.parametrize("name", ["resnet", "lstm"])
def test_what_the_compiler_makes_is_within_the_contract(name: str) -> None:
    traced = trace(ZOO[name].model(), ZOO[name].inputs())
    for level in ("o0", "o1", "o3"):
        program = build_program(traced, [], CompileOptions(name=name, optim_level=level))
        verify(program)
        check_contract(program)


def test_it_takes_time_in_proportion_to_the_program() -> None:
    program = with_node("aten.mul.Tensor", (X, 2.0))
    node = edit(program, "graphs.0.nodes.0", outputs=(-1,)).graphs[0].nodes[0]
    large = edit(program, "graphs.0", nodes=(program.graphs[0].nodes[0], *[node] * 100_000))
    start = time.process_time()
    check_contract(large)
    assert time.process_time() - start < 5.0


def test_numbers_stand_for_tensors_as_torch_lets_them() -> None:
    Device(with_node("aten.mul.Tensor", (X, 2)))
    Device(with_node("aten.add.Tensor", (X, X), alpha=math.inf))


def test_operations_that_torch_has_for_complex_numbers_take_them() -> None:
    program = complex_numbers()
    node = replace(program.graphs[0].nodes[1], kwargs=(("dtype", DType.COMPLEX128),))
    program = edit(program, "graphs.0", nodes=(program.graphs[0].nodes[0], node))
    Device(program)
    with pytest.raises(CannotRun, match="it does not compute with complex numbers"):
        Device(edit(program, "graphs.0.nodes.0", op="aten.maximum.default", args=(X, X)))


def test_what_is_named_like_a_dimension_but_is_none_of_the_arguments() -> None:
    def problems(op: str, *args: Any) -> list[str]:
        node = replace(inference().graphs[0].nodes[0], op=op, args=args)
        return list(_dimension_problems(node, inference().graphs[0].values))

    assert not problems("aten.tile.default", X, (7, 2, 3))  # how often
    for op in ("aten.unsqueeze.default", "aten.unsqueeze_copy.default"):
        assert not problems(op, X, 2)  # of the result
        assert problems(op, X, 3) == ["dim 3 is none of its 3 dimensions"]
    assert not problems("aten._stack.default", (X, X), 2)


def test_an_empty_vector_may_be_joined_to_anything() -> None:
    empty = Region(name="e", shape=(0,), dtype=DType.FLOAT32, role=Role.INPUT)
    value = Value(name="e", shape=(0,), dtype=DType.FLOAT32, region=3)
    program = replace(inference(), regions=(*inference().regions, empty))
    program = edit(program, "graphs.0", values=(*program.graphs[0].values, value))
    program = edit(program, "graphs.0.nodes.0", op="aten.cat.default", args=((Ref(2), X), 1))
    program = edit(program, "sections.0.steps.0", reads=(0, 3))
    verify(program)
    Device(program)
    with pytest.raises(CannotRun, match="dim 2 is none of its 2 dimensions"):
        Device(edit(program, "graphs.0.nodes.0", args=((Ref(2), X), 2)))


def _ends(name: str) -> Counter[str]:
    """How the mutants of an op end: none in the error for all that is left, each with its line."""
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    for mutant in mutants(program_of(name)):
        end, error = outcome(mutant.program)
        ends[end] += 1
        if end in ("plan", "foreign"):
            wrong.append(f"{mutant.what}: {error}")
        sources: list[str] = []
        if isinstance(error, LoweringError):
            sources = [error.source]
        elif isinstance(error, CannotRun):
            sources = [problem.source for problem in error.problems]
            assert all(problem.node >= 0 for problem in error.problems)
        assert all("mutants.py:" in source for source in sources), (mutant.what, error)
    assert not wrong, "\n".join(wrong)
    return ends


@pytest.mark.parametrize("name", ["conv1d", "view"])
def test_some_mutants(name: str) -> None:
    ends = _ends(name)
    assert ends.total() > 25
    assert ends["cannot run"] > 10 or "conv" not in name


@pytest.mark.slow
@pytest.mark.parametrize("name", OPS)
def test_all_mutants(name: str) -> None:
    print(f"mutants of {name}: {dict(_ends(name))}")
