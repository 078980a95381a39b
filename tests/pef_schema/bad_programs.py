"""Broken files: right bytes, wrong programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from pef_schema import (
    ArginKind,
    Call,
    DType,
    Node,
    OptimizerKind,
    PefInvalid,
    Program,
    Ref,
    Role,
    Schedule,
    Section,
    SectionKind,
    Step,
)
from tests.pef_schema.cases import add_case, edit, set_field
from tests.pef_schema.forge import encode_rows, encode_unchecked
from tests.pef_schema.samples import custom, small, training

# Rows that no Program can express.


def _rows(name: str, text: str, change: Callable[[list[Any]], None]) -> None:
    add_case(name, PefInvalid, text, lambda: encode_rows(small(), change))


_rows("unknown_dtype", "region 0: unknown DType 200", lambda r: set_field(r[3][0], 2, 200))
_rows("missing_dtype", "region 0: unknown DType 0", lambda r: set_field(r[3][0], 2, 0))
_rows("unknown_role", "region 0: unknown Role 99", lambda r: set_field(r[3][0], 3, 99))
_rows("unknown_value_dtype", "value 0: unknown DType 77", lambda r: set_field(r[5][0][1][0], 2, 77))
_rows("unknown_grad", "output 0: unknown OutputGrad 9", lambda r: set_field(r[5][0][4][0], 4, 9))
_rows("unknown_optimizer", "unknown OptimizerKind 50", lambda r: set_field(r[6][0], 1, 50))
_rows("unknown_argin", "argin 0: unknown ArginKind 6", lambda r: set_field(r[7][0], 2, 6))
_rows("unknown_step", "section 0: unknown SectionKind 7", lambda r: set_field(r[8][0][1][0], 0, 7))
_rows(
    "unknown_arg_tag",
    "node 0: argument tag 9 with number 0",
    lambda r: set_field(r[5][0][2][0], 1, b"\x09\2\2"),
)
_rows("arg_bool_2", "tag 4 with number 2", lambda r: _args(r, b"\4", (2,)))
_rows("arg_dtype", "tag 3 with number 90", lambda r: _args(r, b"\3", (90,)))
_rows("arg_text", "tag 7 with number 1", lambda r: _args(r, b"\7", (1,)))
_rows("arg_list_negative", "tag 8 with number -1", lambda r: _args(r, b"\x08", (-1,)))
_rows("arg_list_long", "tag 8 with number 9", lambda r: _args(r, b"\x08\1", (9, 0)))
_rows("arg_list_short", "too few items", lambda r: _args(r, b"\x08\x08\1", (2, 1, 0)))
_rows("arg_counts", "2 argument tags, 1 numbers", lambda r: _args(r, b"\1\1", (0,)))
_rows(
    "arg_lists_deep",
    "tag 8 with number 1",
    lambda r: _args(r, b"\x08" * 9 + b"\1", (1,) * 9 + (0,)),
)
_rows(
    "more_keywords_than_arguments",
    "more keyword names than arguments",
    lambda r: set_field(r[5][0][2][0], 4, ("a", "b", "c", "d")),
)


def _args(root: list[Any], tags: bytes, bits: tuple[int, ...]) -> None:
    node = root[5][0][2][2]
    node[1], node[2] = tags, bits


# The meaning.


def _meaning(name: str, text: str, change: Callable[[Program], Program]) -> None:
    add_case(name, PefInvalid, text, lambda: encode_unchecked(change(small())))


def _constant(case: str, text: str, path: str, /, **changes: Any) -> None:
    """Add a case that needs the sample with constants."""
    add_case(case, PefInvalid, text, lambda: encode_unchecked(edit(training(), path, **changes)))


def _edit(case: str, text: str, path: str, /, **changes: Any) -> None:
    _meaning(case, text, lambda program: edit(program, path, **changes))


_REDUCE = Step(kind=SectionKind.REDUCE, reads=(2,), writes=(2,))


def _reduce(case: str, text: str, /, **changes: Any) -> None:
    """Add a case with a REDUCE step in place of the one that limits the norm."""
    changes = {"kind": SectionKind.REDUCE, "optimizers": (), "max_norm": 0.0} | changes
    _edit(case, text, "sections.2.steps.0", **changes)


_edit("name_empty", "program: empty name", "", name="")
_edit("name_upwards", "is not a file name", "", name="../../etc/net")
_edit("name_dots", "is not a file name", "", name="..")
_edit("name_control", "control character in name 'a\\nb'", "", name="a\nb")
_edit("name_long", "text of 1025 bytes, at most 1024", "regions.0", name="n" * 1025)
_edit("mapping", "mapping 'diagonal'", "", mapping="diagonal")
_edit("metadata_unsorted", "keys are not sorted", "", metadata=(("b", ""), ("a", "")))
_edit("metadata_twice", "name 'a' is used 2 times", "", metadata=(("a", ""), ("a", "")))
_edit("region_twice", "region: name 'x' is used 2 times", "regions.1", name="x")
_edit("symbol_twice", "symbol: name 'x' is used 2 times", "symbols.0", name="x")
_edit("value_twice", "graph 0 value: name 'x' is used 2 times", "graphs.0.values.1", name="x")
_edit("section_twice", "section: name 'opt' is used 2 times", "sections.0", name="opt")
_edit("argin_twice", "argin: name 'lr' is used 2 times", "argins.1", name="lr")
_edit("dim_negative", "region 0 (x): negative size -1", "regions.0", shape=(-1, 3))
_edit("dim_huge", "size 9223372036854775807", "regions.0", shape=(2**63 - 1,))
_edit("dim_huge_by_zero", "size 9223372036854775807", "regions.0", shape=(0, 2**63 - 1))
_edit("shape_huge", "bytes, at most 281474976710656", "regions.0", shape=(2**20, 2**20, 2**20))
_edit("rank_17", "rank 17, at most 16", "regions.0", shape=(1,) * 17)
_edit("value_dim_negative", "value 4: negative size -3", "graphs.0.values.4", shape=(-3,))
_constant("size_mismatch", "16 bytes, shape and dtype need 20", "regions.3", shape=(5,))
_constant("segment_index", "segment 7 is out of range, there are 2", "regions.3", segment=7)
_constant("segment_unused", "segments that no region uses: [1]", "regions.12", segment=0)
_constant("constant_empty", "a constant without a segment", "regions.3", segment=-1)
_edit("symbol_region", "symbol 0: region 13 is out of range", "symbols.0", region=13)
_edit("symbol_grad", "symbol 0: grad_region 13 is out", "symbols.0", grad_region=13)
_edit("value_region", "value 0: region 99 is out of range", "graphs.0.values.0", region=99)
_edit("value_home", "its region FLOAT32 (2, 3)", "graphs.0.values.0", shape=(3, 2))
_edit("value_home_dtype", "its region FLOAT32 (2, 3)", "graphs.0.values.0", dtype=DType.FLOAT16)
_edit("value_grad", "its gradient (2, 4)", "graphs.0.values.1", grad_region=4)
_edit("input_index", "input value 7 is out of range", "graphs.0", inputs=(7,))
_edit("input_twice", "value 0 is an input twice", "graphs.0", inputs=(0, 0))
_edit("input_homeless", "input value 6 has no region", "graphs.0", inputs=(0, 6))
_edit("node_output", "output value 9 is out of range", "graphs.0.nodes.0", outputs=(9,))
_edit("node_argument", "argument value 42 is out", "graphs.0.nodes.0", args=(Ref(42),))
_edit("node_argument_negative", "argument value -1", "graphs.0.nodes.0", args=(Ref(-1),))
_edit("node_cycle", "value 4 is used before it is made", "graphs.0.nodes.0", args=(Ref(4),))
_edit("value_made_twice", "value 3 has a second producer", "graphs.0.nodes.1", outputs=(3, 4))
_edit("input_produced", "value 0 has a second producer", "graphs.0.nodes.1", outputs=(4, 0))
_edit("ref_deep", "inside more than 2 lists", "graphs.0.nodes.0", args=((((Ref(0),),),),))
_edit("op_empty", "node 0: empty name", "graphs.0.nodes.0", op="")
_edit("kwargs_unsorted", "not sorted", "graphs.0.nodes.0", kwargs=(("b", 1), ("a", 2)))
_edit("kwargs_twice", "used 2 times", "graphs.0.nodes.0", kwargs=(("a", 1), ("a", 2)))
_edit("output_value", "output 0: value 50 is out", "graphs.0.outputs.0", value=50)
_edit("output_region", "output 0: region 50 is out", "graphs.0.outputs.0", region=50)
_edit("output_shape", "its region FLOAT32 (2, 3)", "graphs.0.outputs.0", region=0)
_edit("output_grad_absent", "ONES with gradient region -1", "graphs.0.outputs.0", grad_region=-1)
_edit("output_grad_index", "grad_region 50", "graphs.0.outputs.0", grad_region=50)
_edit("output_grad_shape", "its gradient (4, 3)", "graphs.0.outputs.0", grad_region=2)
_edit("update_role", "which no update may write", "graphs.0.updates.0", value=0, region=0)
_edit("update_unmade", "value 6 is never made", "graphs.0.nodes.2", outputs=(-1,))
_edit("optimizer_weight_role", "region 0 is INPUT", "optimizers.0.params.0", weight=0)
_edit("optimizer_shapes", "have shapes", "optimizers.0.params.0", states=(4,))
_edit("optimizer_region", "region 77 is out", "optimizers.0.params.0", grad=77)
_edit("optimizer_argin", "region 0 is INPUT, wanted ARGIN", "optimizers.0", argins=(("lr", 0),))
_edit("optimizer_step", "its step count has shape", "optimizers.0", step=1)
_edit("option_nan", "option eps is NaN", "optimizers.0", options=(("eps", float("nan")),))
_edit("options_unsorted", "not sorted", "optimizers.0", options=(("b", 0.0), ("a", 0.0)))
_edit("argin_nan", "argin 0: its default is NaN", "argins.0", default=float("nan"))
_edit("argin_region", "argin 0: region 60 is out", "argins.0", region=60)
_edit("argin_role", "region 10 is METRIC", "argins.0", region=10)
_edit("argin_dtype", "its region is FLOAT32 (2, 3), wanted FLOAT64 ()", "argins.0", region=0)
_edit("section_empty", "wanted one step or FWD and BCKWD", "sections.0", steps=())
_edit("step_graph", "graph 3 is out of range", "sections.0.steps.0", graph=3)
_edit("step_no_graph", "a FWD step without a graph", "sections.0.steps.0", graph=-1, nodes=())
_edit("step_nodes", "nodes 9 is out of range", "sections.0.steps.0", nodes=(0, 9))
_edit("backward_nodes", "nodes 3 is out of range", "sections.1.steps.0", nodes=(0, 3))
_edit("step_order", "nodes are not in ascending order", "sections.0.steps.0", nodes=(1, 0))
_edit("step_recompute", "with recomputed nodes", "sections.0.steps.0", recompute=(0,))
_edit("step_optimizers", "optimizers 4 is out of range", "sections.3.steps.0", optimizers=(4,))
_edit("max_norm_nan", "max_norm nan", "sections.2.steps.0", max_norm=float("nan"))
_edit("reads_unsorted", "reads are not in ascending", "sections.0.steps.0", reads=(3, 1))
_edit("reads_index", "reads 13 is out of range", "sections.0.steps.0", reads=(0, 13))
_edit("writes_negative", "writes -4 is out of range", "sections.0.steps.0", writes=(-4, 4))
_edit("writes_input", "writes region 0, a INPUT", "sections.0.steps.0", writes=(0, 4, 5))
_edit("writes_weight", "writes region 1, a WEIGHT", "sections.0.steps.0", writes=(1, 4, 5))
_constant("writes_constant", "writes region 3, a CONSTANT", "sections.0.steps.0", writes=(3, 4, 5))
_edit("writes_argin", "writes region 8, a ARGIN", "sections.3.steps.0", writes=(1, 7, 8))
_reduce("reduce_reads", "a REDUCE step reads (2,) and writes ()", reads=(2,), writes=())
_reduce("reduce_role", "region 10 is METRIC, wanted GRADIENT", reads=(2, 10), writes=(2, 10))
_meaning(
    "reduce_twice",
    "gradient 2 is reduced twice",
    lambda program: dataclasses.replace(
        program,
        sections=(
            *program.sections,
            *(
                Section(name=name, steps=(_REDUCE,), twin=len(program.sections) + i)
                for i, name in enumerate(("reduce_a", "reduce_b"))
            ),
        ),
    ),
)
_meaning(
    "reduce_dtypes",
    "reduced together: FLOAT16, FLOAT32",
    lambda program: edit(
        dataclasses.replace(
            edit(program, "regions.10", role=Role.GRADIENT, dtype=DType.FLOAT16),
            sections=(
                *program.sections,
                Section(
                    name="reduce",
                    steps=(dataclasses.replace(_REDUCE, reads=(2, 10), writes=(2, 10)),),
                    twin=len(program.sections),
                ),
            ),
        ),
        "sections.2.steps.0",
        writes=(2,),
    ),
)
_edit("accumulates", "that it does not write", "sections.1.steps.0", accumulates=(4,))
_edit("twin_later", "twin 2 is out of range", "sections.1", twin=2)
_edit("twin_other_kind", "has steps of other kinds", "sections.1", twin=0)
_edit("inference_backward", "compiled for inference", "", inference=True)
_edit("schedule_graph", "schedule 0: graph 1 is out", "schedules.0", graph=1)
_edit("schedule_section", "section 4 is out of range", "schedules.0.calls.3", section=4)
_edit("call_ids", "call ids are not in ascending", "schedules.0.calls.3", call_id=20)
_edit("schedule_cycle", "call 0 reads region 4 (h) before", "schedules.0.calls.0", section=1)
_meaning(
    "schedule_twice",
    "graph 0 has a schedule already",
    lambda program: dataclasses.replace(program, schedules=program.schedules * 2),
)
_meaning(
    "optimizer_twice",
    "optimizer: name 'sgd0' is used 2 times",
    lambda program: dataclasses.replace(program, optimizers=program.optimizers * 2),
)
_meaning(
    "graph_twice",
    "graph: name 'net' is used 2 times",
    lambda program: dataclasses.replace(program, graphs=program.graphs * 2),
)
_meaning(
    "many_problems",
    "... and 30 more",
    lambda program: edit(
        program,
        "graphs.0",
        nodes=tuple(Node(op="a.b.c", args=(Ref(99),), outputs=()) for _ in range(48)),
    ),
)


# Custom gradients.


def _gradient(case: str, text: str, path: str, /, **changes: Any) -> None:
    add_case(case, PefInvalid, text, lambda: encode_unchecked(edit(custom(), path, **changes)))


_G, _M = "graphs.0.gradients.0", "graphs.0.nodes.2"
_PARTS = ((Ref(2),), (Ref(0),), (Ref(1),))
_gradient("gradient_name", "gradient 0: empty name", _G, name="")
_gradient("gradient_source", "text of 5000 bytes", _G, source="x" * 5000)
_gradient("gradient_input", "gradient 0: input value 9 is out of range", _G, inputs=(0, 9))
_gradient("gradient_input_twice", "value 0 is an input twice", _G, inputs=(0, 0))
_gradient("gradient_output", "gradient 0: output value -1 is out of range", _G, outputs=(-1,))
_gradient("gradient_order", "gradient 0 node 0: value 1 is used before", _G, inputs=(0,))
_gradient("gradient_unmade", "gradient 0: output value 2 is never made", _G, nodes=())
_gradient("gradient_shape", "gradient 0 value 2: negative size -3", f"{_G}.values.2", shape=(-3,))
_gradient("gradient_form", "value 1 of gradient 0 is FLOAT32 (7,)", f"{_G}.values.1", shape=(7,))
_gradient("gradient_dtype", "value 2 of gradient 0 is INT8", f"{_G}.values.2", dtype=DType.INT8)
_gradient("gradient_region", "gradient 0 value 0: a region", f"{_G}.values.0", region=0)
_gradient(
    "gradient_nested", "a custom gradient within", f"{_G}.nodes.0", op="samba.custom_gradient"
)
_gradient("gradient_unused", "gradients that no node uses: [0]", _M, op="aten.add.Tensor")
_gradient("gradient_index", "node 2: gradient 1 is out of range", _M, args=(1, *_PARTS))
_gradient("gradient_index_bool", "of type bool, wanted an index", _M, args=(False, *_PARTS))
_gradient("gradient_few_args", "3 arguments, a custom gradient takes 4", _M, args=(0, *_PARTS[:2]))
_gradient("gradient_no_lists", "takes three lists of values", _M, args=(0, Ref(2), *_PARTS[1:]))
_gradient("gradient_reads", "1 results and reads, gradient 0 has 2", _M, args=(0, *_PARTS[:2], ()))
_gradient(
    "gradient_inputs",
    "2 inputs, gradient 0 has 1",
    _M,
    args=(0, _PARTS[0], (Ref(0),) * 2, _PARTS[2]),
)
_gradient("gradient_results", "1 outputs of 0 results", _M, args=(0, (), *_PARTS[1:]))
_gradient(
    "gradient_passes_on",
    "result 2 has another form than output 3",
    "graphs.0.values.2",
    shape=(3, 2),
)
_gradient(
    "gradient_of_integers",
    "value 0 cannot carry a gradient",
    "graphs.0.values.0",
    dtype=DType.INT32,
)


# What steps read and write, what schedules run, what optimizers hold.

_S = "sections.{}.steps.0"


def _step(case: str, text: str, section: int, /, **changes: Any) -> None:
    _edit(case, text, _S.format(section), **changes)


_edit("gradient_role", "its gradient is METRIC, wanted", "regions.2", role=Role.METRIC)
_edit("home_role", "region 4 is METRIC, which holds no values", "regions.4", role=Role.METRIC)
_edit("value_gradient_dtype", "FLOAT32, its gradient FLOAT16", "regions.2", dtype=DType.FLOAT16)
_edit("output_grad_role", "wanted OUTPUT_GRADIENT", "regions.6", role=Role.METRIC)
_edit("output_grad_dtype", "FLOAT32, its gradient FLOAT64", "regions.6", dtype=DType.FLOAT64)
_edit("whole_gradient", "INT32 carries no gradient", "graphs.0.values.4", dtype=DType.INT32)
_step("forward_reads", "FWD: it takes but does not read 1 (w)", 0, reads=(0, 3, 9))
_meaning(
    "forward_saves",
    "FWD: it makes but does not write 4 (h)",
    lambda program: edit(edit(program, _S.format(0), writes=(5, 9)), _S.format(1), reads=(0, 6)),
)
_step("forward_writes", "FWD: it writes but does not make 10 (norm)", 0, writes=(4, 5, 9, 10))
_step("forward_adds", "it accumulates, which BCKWD steps alone", 0, accumulates=(4,))
_step("backward_writes", "it makes but does not write: 2 (w__grad)", 1, writes=(), accumulates=())
_step("backward_more", "BCKWD: it writes but does not make 10", 1, writes=(2, 10))
_step("backward_starts", "does not read: 6 (loss__grad)", 1, reads=(0, 4))
_edit("backward_no_home", "gradients that have no region: w", "graphs.0.values.1", grad_region=-1)
_step("norm_foreign", "it reads what is no gradient of its optimizers: 10", 2, reads=(2, 10))
_step("norm_partly", "it reads 0 of 1 gradients", 2, reads=())
_step("norm_unwritten", "it scales but does not write: 2", 2, writes=(10,))
_step("norm_place", "what is no number of METRIC: 7", 2, writes=(2, 7))
_step("opt_reads", "OPT: it needs but does not read 8 (lr)", 3, reads=(1, 2, 7))
_step("opt_states", "OPT: it makes but does not write 7", 3, writes=(1,))
_step("opt_writes", "OPT: it writes but does not make 10", 3, writes=(1, 7, 10))
_step("opt_graph", "a step over regions has graph 0", 3, graph=0)
_meaning(
    "zerograd_role",
    "it writes regions that are no gradients: 10 (norm)",
    lambda program: edit(
        program,
        _S.format(2),
        kind=SectionKind.ZEROGRAD,
        optimizers=(),
        max_norm=0.0,
        reads=(),
        writes=(10,),
    ),
)


def _again(case: str, text: str, section: int) -> None:
    """Add a case whose last section does what an earlier one does."""
    _meaning(
        case,
        text,
        lambda program: dataclasses.replace(
            program,
            sections=(
                *program.sections,
                dataclasses.replace(program.sections[section], name="again", twin=section),
            ),
        ),
    )


_again("node_run_twice", "nodes [0, 1, 2] are run by an earlier step", 0)
_again("node_pulled_twice", "nodes [0, 1] are differentiated by an earlier step", 1)
_meaning(
    "section_graphs",
    "its steps are of several graphs",
    lambda program: dataclasses.replace(
        program,
        graphs=(*program.graphs, dataclasses.replace(program.graphs[0], name="other")),
        sections=(
            Section(
                name="both",
                steps=(
                    program.sections[0].steps[0],
                    dataclasses.replace(program.sections[1].steps[0], graph=1),
                ),
                twin=0,
            ),
        ),
        schedules=(Schedule(graph=0, calls=()), Schedule(graph=1, calls=())),
    ),
)


def _two_graphs(program: Program) -> Program:
    """The same graph twice under two names, each with a schedule."""
    forward = program.sections[0]
    other = dataclasses.replace(
        forward, name="other", steps=(dataclasses.replace(forward.steps[0], graph=1),)
    )
    return dataclasses.replace(
        program,
        graphs=(*program.graphs, dataclasses.replace(program.graphs[0], name="other")),
        sections=(forward, other),
        schedules=(
            Schedule(graph=0, calls=(Call(call_id=0, section=0),)),
            Schedule(graph=1, calls=(Call(call_id=1, section=1),)),
        ),
    )


def _schedules(case: str, text: str, *numbers: int) -> None:
    """Add a case of two graphs whose schedules are these of the two, in this order."""
    _meaning(
        case,
        text,
        lambda program: dataclasses.replace(
            _two_graphs(program),
            schedules=tuple(_two_graphs(program).schedules[i] for i in numbers),
        ),
    )


_schedules("schedules_swapped", "schedule 0: it is of graph 1, wanted graph 0", 1, 0)
_schedules("schedule_missing", "1 schedules of 2 graphs", 0)
_meaning(
    "schedule_other_graph",
    "section 1 is of graph 1, the schedule of graph 0",
    lambda program: edit(_two_graphs(program), "schedules.0", calls=(Call(call_id=0, section=1),)),
)
_meaning(
    "no_graph",
    "1 sections, but no graph",
    lambda program: dataclasses.replace(
        program, graphs=(), schedules=(), sections=(Section(name="a", steps=(_REDUCE,), twin=0),)
    ),
)
_edit("schedule_empty", "no call writes output 0 (loss)", "schedules.0", calls=())


def _cut(program: Program) -> Program:
    """The forward section in two, of which the schedule calls the second one first."""
    step = program.sections[0].steps[0]
    halves = (
        dataclasses.replace(step, nodes=(0,), reads=(0, 1, 3), writes=(4,)),
        dataclasses.replace(step, nodes=(1, 2), reads=(4, 9), writes=(5, 9)),
    )
    program = edit(program, "regions.4", role=Role.BUFFER)
    return dataclasses.replace(
        program,
        sections=tuple(
            Section(name=f"half{i}", steps=(half,), twin=i) for i, half in enumerate(halves)
        ),
        schedules=(
            Schedule(graph=0, calls=(Call(call_id=0, section=1), Call(call_id=1, section=0))),
        ),
    )


_meaning("schedule_backwards", "node 1 takes h before any call makes it", _cut)
_meaning(
    "forward_homeless",
    "FWD: it takes values that have no region: h",
    lambda program: edit(_cut(program), "graphs.0.values.3", region=-1),
)
_edit("argin_infinite", "argin 0 (lr): default inf, not a finite number", "argins.0", default=1e999)
_edit("seed_infinite", "a whole number that torch.manual_seed takes", "argins.1", default=1e999)
_edit("seed_fraction", "a whole number that torch.manual_seed takes", "argins.1", default=0.5)
_edit("seed_large", "a whole number that torch.manual_seed takes", "argins.1", default=2.0**64)
_edit(
    "argin_twice_set", "region 9 has one already", "argins.0", region=9, kind=ArginKind.DROPOUT_SEED
)
_edit("option_infinite", "option dampening is inf", "optimizers.0", options=(("dampening", 1e999),))
_edit("option_unknown", "no option beta1", "optimizers.0", options=(("beta1", 0.5),))
_edit(
    "option_switch",
    "option nesterov is 2.0, not 0 or 1",
    "optimizers.0",
    options=(("nesterov", 2.0),),
)
_edit(
    "option_dampening",
    "no region for its step count",
    "optimizers.0",
    options=(("dampening", 0.1),),
)
_edit("optimizer_argin_name", "no argin rate", "optimizers.0", argins=(("rate", 8),))
_edit(
    "optimizer_argin_unset",
    "its lr is region 11, which no argin",
    "optimizers.0",
    argins=(("lr", 11),),
)
_edit("optimizer_argin_kind", "by an argin of kind MOMENTUM", "argins.0", kind=ArginKind.MOMENTUM)
_edit("optimizer_states", "param 0: 0 states, wanted 1", "optimizers.0.params.0", states=())
_edit(
    "optimizer_count",
    "it has no region for its step count",
    "optimizers.0",
    kind=OptimizerKind.ADAM,
)
_edit("optimizer_count_role", "its step count is METRIC FLOAT32", "optimizers.0", step=10)
_edit(
    "optimizer_dtype", "region 7 is FLOAT16, its weight FLOAT32", "regions.7", dtype=DType.FLOAT16
)
_meaning(
    "argin_rate",
    "default 1.5, not a number from 0 to 1",
    lambda program: edit(program, "argins.0", kind=ArginKind.DROPOUT_RATE, default=1.5),
)
_meaning(
    "optimizer_beta",
    "option beta1 is 1.0, not a number from 0 to below 1",
    lambda program: edit(
        program, "optimizers.0", kind=OptimizerKind.QADAM, options=(("beta1", 1.0),)
    ),
)


def _two_params(program: Program) -> Program:
    """Two parameters with one state."""
    param = program.optimizers[0].params[0]
    regions = tuple(
        dataclasses.replace(program.regions[i], name=f"{program.regions[i].name}_2")
        for i in (param.weight, param.grad)
    )
    first = len(program.regions)
    second = dataclasses.replace(param, weight=first, grad=first + 1)
    program = dataclasses.replace(program, regions=(*program.regions, *regions))
    return edit(program, "optimizers.0", params=(param, second))


_meaning("optimizer_state_shared", "region 7 is another parameter's too", _two_params)
# Sizes.


def _asks(case: str, op: str, args: tuple[Any, ...], text: str, **kwargs: Any) -> None:
    """Add a case of an operation that is told to make something of an impossible size."""
    _edit(
        case,
        f"node 0: {op} asks for {text}",
        "graphs.0.nodes.0",
        op=op,
        args=args,
        kwargs=tuple(kwargs.items()),
    )


_EMPTY = "bytes, at most 281474976710656 are allowed"
_edit("empty_overflow", _EMPTY, "regions.0", shape=(2**48, 2**48, 0))
_edit("empty_overflow_inside", _EMPTY, "regions.0", shape=(0, 2**40, 2**40))
_edit("empty_value", f"value 4: {2**84} {_EMPTY}", "graphs.0.values.4", shape=(2**41, 2**41, 0))
_edit(
    "empty_turns",
    "sizes before a 0 of 268435456, at most 4194304 are allowed",
    "regions.0",
    shape=(2**14, 2**14, 0),
)
_gradient(
    "gradient_empty", f"gradient 0 value 2: {2**84}", f"{_G}.values.2", shape=(2**41, 2**41, 0)
)
_asks("size_full", "aten.full.default", ((2**48, 2**48, 0), 1.0), str(2**96))
_asks("size_zeros", "aten.zeros.default", ((2**30, 2**30),), str(2**60))
_asks("size_new_full", "aten.new_full.default", (Ref(0), (2**48, 2**48, 0), 1), str(2**96))
_asks("size_keyword", "aten.ones.default", (), str(2**96), size=(2**48, 2**48, 0))
_asks("size_expand", "aten.expand.default", (Ref(0), (2**40, 2**40, -1, -1)), str(2**80))
_asks("size_repeat", "aten.repeat.default", (Ref(0), (2**30, 2**30, 2)), str(2**61))
_asks("size_view", "aten.view.default", (Ref(0), (-1, 2**47, 2**47, 0)), str(2**94))
_asks("size_strided", "aten.as_strided.default", (Ref(0), (2**62,), (0,)), f"size {2**62}")
_asks("size_eye", "aten.eye.m", (2**30, 2**30), str(2**60))
_asks("size_turns", "aten.empty.memory_format", ((2**13, 2**12, 0),), "sizes before a 0 of")
_asks("size_rank", "aten.rand.default", ((1,) * 17,), "rank 17, at most 16")
_asks("size_randint", "aten.randint.low", (0, 9, (2**48, 2**48, 0)), str(2**96))
_asks("size_arange", "aten.arange.default", (2**62,), f"size {2**62}")
_asks("size_arange_start", "aten.arange.start", (-(2**62), 1), f"size {-(2**62)}")
_asks("size_arange_inf", "aten.arange.default", (float("inf"),), "size inf")
_asks("size_linspace", "aten.linspace.default", (0.0, 1.0, 2**50), f"size {2**50}")
_asks("size_one_hot", "aten.one_hot.default", (Ref(0), 2**63 - 1), f"size {2**63 - 1}")
_asks("size_pad", "aten.constant_pad_nd.default", (Ref(0), (2**62, 0)), f"size {2**62}")
_asks("size_interleave", "aten.repeat_interleave.self_int", (Ref(0), 2**60), f"size {2**60}")
_asks("size_window", "aten.hann_window.default", (2**60,), f"size {2**60}")
_asks("size_upsample", "aten.upsample_nearest2d.vec", (Ref(0), (2**31, 2**31), None), str(2**62))
