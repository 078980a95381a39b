"""Broken files: right bytes, wrong programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from pef_schema import (
    DType,
    Node,
    PefInvalid,
    Ref,
    Role,
    Section,
    SectionKind,
)
from tests.pef_schema.cases import REDUCE, add_case, edit, edited, gradient, meaning, set_field
from tests.pef_schema.forge import encode_rows, encode_unchecked
from tests.pef_schema.samples import small, training

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
    "arg_real_part_alone",
    "a complex argument lacks its imaginary part",
    lambda r: _args(r, b"\x0a", (0,)),
)
_rows(
    "arg_real_part_and_more",
    "a complex argument lacks its imaginary part",
    lambda r: _args(r, b"\x0a\6", (0, 0)),
)
_rows("arg_imaginary_part_alone", "tag 11 with number 0", lambda r: _args(r, b"\x0b", (0,)))
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


def _constant(case: str, text: str, path: str, /, **changes: Any) -> None:
    """Add a case that needs the sample with constants."""
    add_case(case, PefInvalid, text, lambda: encode_unchecked(edit(training(), path, **changes)))


def _reduce(case: str, text: str, /, **changes: Any) -> None:
    """Add a case with a REDUCE step in place of the one that limits the norm."""
    changes = {"kind": SectionKind.REDUCE, "optimizers": (), "max_norm": 0.0} | changes
    edited(case, text, "sections.2.steps.0", **changes)


edited("name_empty", "program: empty name", "", name="")
edited("name_upwards", "is not a file name", "", name="../../etc/net")
edited("name_dots", "is not a file name", "", name="..")
edited("name_control", "control character in name 'a\\nb'", "", name="a\nb")
edited("name_long", "text of 1025 bytes, at most 1024", "regions.0", name="n" * 1025)
edited("mapping", "mapping 'diagonal'", "", mapping="diagonal")
edited("metadata_unsorted", "keys are not sorted", "", metadata=(("b", ""), ("a", "")))
edited("metadata_twice", "name 'a' is used 2 times", "", metadata=(("a", ""), ("a", "")))
edited("region_twice", "region: name 'x' is used 2 times", "regions.1", name="x")
edited("symbol_twice", "symbol: name 'x' is used 2 times", "symbols.0", name="x")
edited("value_twice", "graph 0 value: name 'x' is used 2 times", "graphs.0.values.1", name="x")
edited("section_twice", "section: name 'opt' is used 2 times", "sections.0", name="opt")
edited("argin_twice", "argin: name 'lr' is used 2 times", "argins.1", name="lr")
edited("dim_negative", "region 0 (x): negative size -1", "regions.0", shape=(-1, 3))
edited("dim_huge", "size 9223372036854775807", "regions.0", shape=(2**63 - 1,))
edited("dim_huge_by_zero", "size 9223372036854775807", "regions.0", shape=(0, 2**63 - 1))
edited("shape_huge", "bytes, at most 281474976710656", "regions.0", shape=(2**20, 2**20, 2**20))
edited("rank_17", "rank 17, at most 16", "regions.0", shape=(1,) * 17)
edited("value_dim_negative", "value 4: negative size -3", "graphs.0.values.4", shape=(-3,))
_constant("size_mismatch", "16 bytes, shape and dtype need 20", "regions.3", shape=(5,))
_constant("segment_index", "segment 7 is out of range, there are 2", "regions.3", segment=7)
_constant("segment_unused", "segments that no region uses: [1]", "regions.12", segment=0)
_constant("constant_empty", "a constant without a segment", "regions.3", segment=-1)
edited("symbol_region", "symbol 0: region 13 is out of range", "symbols.0", region=13)
edited("symbol_grad", "symbol 0: grad_region 13 is out", "symbols.0", grad_region=13)
edited("value_region", "value 0: region 99 is out of range", "graphs.0.values.0", region=99)
edited("value_home", "its region is FLOAT32 (2, 3)", "graphs.0.values.0", shape=(3, 2))
edited("value_home_dtype", "its region is FLOAT32 (2, 3)", "graphs.0.values.0", dtype=DType.FLOAT16)
edited("value_grad", "its gradient's is (2, 4)", "graphs.0.values.1", grad_region=4)
edited("input_index", "input value 7 is out of range", "graphs.0", inputs=(7,))
edited("input_twice", "value 0 is an input twice", "graphs.0", inputs=(0, 0))
edited("input_homeless", "input value 6 has no region", "graphs.0", inputs=(0, 6))
edited("node_output", "output value 9 is out of range", "graphs.0.nodes.0", outputs=(9,))
edited("node_argument", "argument value 42 is out", "graphs.0.nodes.0", args=(Ref(42),))
edited("node_argument_negative", "argument value -1", "graphs.0.nodes.0", args=(Ref(-1),))
edited("node_cycle", "value 4 is used before it is made", "graphs.0.nodes.0", args=(Ref(4),))
edited("value_made_twice", "value 3 has a second producer", "graphs.0.nodes.1", outputs=(3, 4))
edited("input_produced", "value 0 has a second producer", "graphs.0.nodes.1", outputs=(4, 0))
edited("ref_deep", "inside more than 2 lists", "graphs.0.nodes.0", args=((((Ref(0),),),),))
edited("op_empty", "node 0: empty name", "graphs.0.nodes.0", op="")
edited("kwargs_unsorted", "not sorted", "graphs.0.nodes.0", kwargs=(("b", 1), ("a", 2)))
edited("kwargs_twice", "used 2 times", "graphs.0.nodes.0", kwargs=(("a", 1), ("a", 2)))
edited("output_value", "output 0: value 50 is out", "graphs.0.outputs.0", value=50)
edited("output_region", "output 0: region 50 is out", "graphs.0.outputs.0", region=50)
edited("output_shape", "its region is FLOAT32 (2, 3)", "graphs.0.outputs.0", region=0)
edited("output_grad_absent", "ONES with gradient region -1", "graphs.0.outputs.0", grad_region=-1)
edited("output_grad_index", "grad_region 50", "graphs.0.outputs.0", grad_region=50)
edited("output_grad_shape", "its gradient's is (4, 3)", "graphs.0.outputs.0", grad_region=2)
edited("update_role", "which no update may write", "graphs.0.updates.0", value=0, region=0)
edited("update_unmade", "value 6 is never computed", "graphs.0.nodes.2", outputs=(-1,))
edited("optimizer_weight_role", "region 0 is INPUT", "optimizers.0.params.0", weight=0)
edited("optimizer_shapes", "have shapes", "optimizers.0.params.0", states=(4,))
edited("optimizer_region", "region 77 is out", "optimizers.0.params.0", grad=77)
edited("optimizer_argin", "region 0 is INPUT, expected ARGIN", "optimizers.0", argins=(("lr", 0),))
edited("optimizer_step", "its step count has shape", "optimizers.0", step=1)
edited("option_nan", "option eps is NaN", "optimizers.0", options=(("eps", float("nan")),))
edited("options_unsorted", "not sorted", "optimizers.0", options=(("b", 0.0), ("a", 0.0)))
edited("argin_nan", "argin 0: its default is NaN", "argins.0", default=float("nan"))
edited("argin_region", "argin 0: region 60 is out", "argins.0", region=60)
edited("argin_role", "region 10 is METRIC", "argins.0", region=10)
edited("argin_dtype", "its region is FLOAT32 (2, 3), expected FLOAT64 ()", "argins.0", region=0)
edited("section_empty", "expected one step or FWD and BCKWD", "sections.0", steps=())
edited("step_graph", "graph 3 is out of range", "sections.0.steps.0", graph=3)
edited("step_no_graph", "a FWD step without a graph", "sections.0.steps.0", graph=-1, nodes=())
edited("step_nodes", "nodes 9 is out of range", "sections.0.steps.0", nodes=(0, 9))
edited("backward_nodes", "nodes 3 is out of range", "sections.1.steps.0", nodes=(0, 3))
edited("step_order", "nodes are not in ascending order", "sections.0.steps.0", nodes=(1, 0))
edited("step_recompute", "with recomputed nodes", "sections.0.steps.0", recompute=(0,))
edited("step_optimizers", "optimizers 4 is out of range", "sections.3.steps.0", optimizers=(4,))
edited("max_norm_nan", "max_norm nan", "sections.2.steps.0", max_norm=float("nan"))
edited("reads_unsorted", "reads are not in ascending", "sections.0.steps.0", reads=(3, 1))
edited("reads_index", "reads 13 is out of range", "sections.0.steps.0", reads=(0, 13))
edited("writes_negative", "writes -4 is out of range", "sections.0.steps.0", writes=(-4, 4))
edited("writes_input", "writes region 0, a INPUT", "sections.0.steps.0", writes=(0, 4, 5))
edited("writes_weight", "writes region 1, a WEIGHT", "sections.0.steps.0", writes=(1, 4, 5))
_constant("writes_constant", "writes region 3, a CONSTANT", "sections.0.steps.0", writes=(3, 4, 5))
edited("writes_argin", "writes region 8, a ARGIN", "sections.3.steps.0", writes=(1, 7, 8))
_reduce("reduce_reads", "a REDUCE step reads (2,) and writes ()", reads=(2,), writes=())
_reduce("reduce_role", "region 10 is METRIC, expected GRADIENT", reads=(2, 10), writes=(2, 10))
meaning(
    "reduce_twice",
    "gradient 2 is reduced twice",
    lambda program: dataclasses.replace(
        program,
        sections=(
            *program.sections,
            *(
                Section(name=name, steps=(REDUCE,), twin=len(program.sections) + i)
                for i, name in enumerate(("reduce_a", "reduce_b"))
            ),
        ),
    ),
)
meaning(
    "reduce_dtypes",
    "reduced together: FLOAT16, FLOAT32",
    lambda program: edit(
        dataclasses.replace(
            edit(program, "regions.10", role=Role.GRADIENT, dtype=DType.FLOAT16),
            sections=(
                *program.sections,
                Section(
                    name="reduce",
                    steps=(dataclasses.replace(REDUCE, reads=(2, 10), writes=(2, 10)),),
                    twin=len(program.sections),
                ),
            ),
        ),
        "sections.2.steps.0",
        writes=(2,),
    ),
)
edited("accumulates", "that it does not write", "sections.1.steps.0", accumulates=(4,))
edited("twin_later", "twin 2 is out of range", "sections.1", twin=2)
edited("twin_other_kind", "has steps of other kinds", "sections.1", twin=0)
edited("inference_backward", "compiled for inference", "", inference=True)
edited("schedule_graph", "schedule 0: graph 1 is out", "schedules.0", graph=1)
edited("schedule_section", "section 4 is out of range", "schedules.0.calls.3", section=4)
edited("call_ids", "call ids are not in ascending", "schedules.0.calls.3", call_id=20)
edited("schedule_cycle", "call 0 reads region 4 (h) before", "schedules.0.calls.0", section=1)
edited("schedule_twice", "graph 0 has a schedule already", "", schedules=small().schedules * 2)
edited("optimizer_twice", "name 'sgd0' is used 2 times", "", optimizers=small().optimizers * 2)
edited("graph_twice", "graph: name 'net' is used 2 times", "", graphs=small().graphs * 2)
_WRONG = Node(op="a.b.c", args=(Ref(99),), outputs=())
edited("many_problems", "... and 30 more", "graphs.0", nodes=(_WRONG,) * 48)


# Custom gradients.


_G, _M = "graphs.0.gradients.0", "graphs.0.nodes.2"
_PARTS = ((Ref(2),), (Ref(0),), (Ref(1),))
gradient("gradient_name", "gradient 0: empty name", _G, name="")
gradient("gradient_source", "text of 5000 bytes", _G, source="x" * 5000)
gradient("gradient_input", "gradient 0: input value 9 is out of range", _G, inputs=(0, 9))
gradient("gradient_input_twice", "value 0 is an input twice", _G, inputs=(0, 0))
gradient("gradient_output", "gradient 0: output value -1 is out of range", _G, outputs=(-1,))
gradient("gradient_order", "gradient 0 node 0: value 1 is used before", _G, inputs=(0,))
gradient("gradient_unmade", "gradient 0: output value 2 is never made", _G, nodes=())
gradient("gradient_shape", "gradient 0 value 2: negative size -3", f"{_G}.values.2", shape=(-3,))
gradient("gradient_form", "value 1 of gradient 0 is FLOAT32 (7,)", f"{_G}.values.1", shape=(7,))
gradient("gradient_dtype", "value 2 of gradient 0 is INT8", f"{_G}.values.2", dtype=DType.INT8)
gradient("gradient_region", "gradient 0 value 0: a region", f"{_G}.values.0", region=0)
gradient("gradient_nested", "a custom gradient within", f"{_G}.nodes.0", op="samba.custom_gradient")
gradient("gradient_unused", "gradients that no node uses: [0]", _M, op="aten.add.Tensor")
gradient("gradient_index", "node 2: gradient 1 is out of range", _M, args=(1, *_PARTS))
gradient("gradient_index_bool", "of type bool, expected an index", _M, args=(False, *_PARTS))
gradient("gradient_few_args", "3 arguments, a custom gradient takes 4", _M, args=(0, *_PARTS[:2]))
gradient("gradient_no_lists", "takes three lists of values", _M, args=(0, Ref(2), *_PARTS[1:]))
gradient("gradient_reads", "1 results and reads, gradient 0 has 2", _M, args=(0, *_PARTS[:2], ()))
_TWICE = (0, _PARTS[0], (Ref(0),) * 2, _PARTS[2])
gradient("gradient_inputs", "2 inputs, gradient 0 has 1", _M, args=_TWICE)
gradient("gradient_results", "1 outputs of 0 results", _M, args=(0, (), *_PARTS[1:]))
_OTHER = "result 2 has another form than output 3"
gradient("gradient_passes_on", _OTHER, "graphs.0.values.2", shape=(3, 2))
_WHOLE = "value 0 cannot carry a gradient"
gradient("gradient_of_integers", _WHOLE, "graphs.0.values.0", dtype=DType.INT32)


# Tensors without elements, and arguments that ask for impossible sizes.


def _asks(case: str, op: str, args: tuple[Any, ...], text: str, **kwargs: Any) -> None:
    """Add a case of an operation that is told to make something of an impossible size."""
    edited(
        case,
        f"node 0: {op} asks for {text}",
        "graphs.0.nodes.0",
        op=op,
        args=args,
        kwargs=tuple(kwargs.items()),
    )


_EMPTY = "bytes, at most 281474976710656 are allowed"
edited("empty_overflow", _EMPTY, "regions.0", shape=(2**48, 2**48, 0))
edited("empty_overflow_inside", _EMPTY, "regions.0", shape=(0, 2**40, 2**40))
edited("empty_value", f"value 4: {2**84} {_EMPTY}", "graphs.0.values.4", shape=(2**41, 2**41, 0))
edited(
    "empty_turns",
    "sizes before a 0 of 268435456, at most 4194304 are allowed",
    "regions.0",
    shape=(2**14, 2**14, 0),
)
gradient(
    "gradient_empty",
    f"gradient 0 value 2: {2**84}",
    "graphs.0.gradients.0.values.2",
    shape=(2**41, 2**41, 0),
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
