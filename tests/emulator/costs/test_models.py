"""Products of whole programs against torch's counter and XLA's cost analysis."""

from __future__ import annotations

import functools

import pytest
import torch

from bench.case import Case, Sgd
from bench.models import SMALL, gpt, res_ffn
from emulator.costs.roofline import Cost
from emulator.costs.steps import gradient_cost, node_cost, schedule_cost, section_cost
from emulator.device import Device
from emulator.native.library import without_native
from emulator.plans.steps import all_steps
from pef_schema.program import Program, SectionKind
from samba.compiler.build import build_program
from samba.compiler.sections import CompileOptions
from tests.emulator.costs.counting import counted_step
from tests.tracing import trace

FAST = ("lenet", "gpt", "lstm", "moe")
ZOO = [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in SMALL]


@functools.cache
def program_of(name: str, cut: str = "") -> Program:
    return compiled(SMALL[name], cut)


def compiled(case: Case, cut: str = "") -> Program:
    """A case with its optimizer."""
    model = case.model()
    batch = tuple(torch.from_numpy(a) for a in case.batches()[0])
    kind = torch.optim.SGD if isinstance(case.optimizer, Sgd) else torch.optim.AdamW
    options = {"momentum": case.optimizer.momentum} if isinstance(case.optimizer, Sgd) else {}
    optimizer = kind(model.parameters(), lr=0.1, **options)
    return build_program(
        trace(model, batch),
        [optimizer],
        CompileOptions(name=case.family, optim_level=cut or case.optim_level),
    )


@pytest.mark.parametrize("name", ZOO)
def test_products_are_those_that_torch_counts(name):
    """Forward and backward, to the operation: what torch counts is what is counted here."""
    found = schedule_cost(program_of(name), 0)
    assert found.product_flops == counted_step(SMALL[name]) > 0
    assert found.other_flops > 0


def test_the_comparison_bites():
    case = SMALL["lenet"]
    assert schedule_cost(program_of("lenet"), 0).product_flops != 2 * counted_step(case)


@pytest.mark.parametrize("name", ["lenet", "gpt"])
def test_how_a_program_is_cut_changes_no_products(name):
    whole = schedule_cost(program_of(name), 0)
    cut = schedule_cost(program_of(name, "o0"), 0)
    assert cut.product_flops == whole.product_flops


def test_sections_by_themselves_make_some_products_again():
    """Attention's scores, of which no section keeps the softmax."""
    program = program_of("gpt")
    whole = schedule_cost(program, 0)
    parts = sum((section_cost(program, i) for i in range(len(program.sections))), Cost())
    layers, batch, heads, length, width = 2, 2, 2, 16, 16
    scores = layers * 2 * batch * heads * length * length * width
    assert parts.product_flops == whole.product_flops + scores
    assert parts.nbytes > whole.nbytes


def test_spatial_sections_make_nothing_again():
    case = SMALL["gpt"]
    model = case.model()
    batch = tuple(torch.from_numpy(a) for a in case.batches()[0])
    options = CompileOptions(name="gpt", mapping="spatial")
    program = build_program(trace(model, batch), [], options)
    (section,) = (s for s in program.sections if SectionKind.BCKWD in s.kinds)
    assert section.kinds == (SectionKind.FWD, SectionKind.BCKWD)
    cost = section_cost(program, program.sections.index(section))
    assert cost.product_flops == counted_step(case)


def test_nodes_add_up_to_their_sections():
    """Forward: the same operations, and more bytes, as values between nodes go to memory."""
    program = program_of("lenet")
    (graph,) = program.graphs
    for index, section in enumerate(program.sections):
        if section.kinds == (SectionKind.FWD,):
            nodes = [node_cost(graph, graph.nodes[i]) for i in section.steps[0].nodes]
            total = sum(nodes, Cost())
            assert total.work == section_cost(program, index).work
            assert total.nbytes > section_cost(program, index).nbytes
    gradients = sum((gradient_cost(graph, node) for node in graph.nodes), Cost())
    forward = sum((node_cost(graph, node) for node in graph.nodes), Cost())
    both = gradients.product_flops + forward.product_flops
    assert both == schedule_cost(program, 0).product_flops


def test_an_embedding_reads_its_rows_alone():
    program = program_of("gpt", "o0")
    graph = program.graphs[0]
    (node,) = (n for n in graph.nodes if n.op == "aten.embedding.default")
    table, indices = (graph.values[v] for v in node.refs())
    made = graph.values[node.outputs[0]]
    found = node_cost(graph, node)
    assert found.bytes_read == 4 * 2 * 16 * 32 + 8 * 2 * 16
    assert found.bytes_written == 4 * 2 * 16 * 32
    assert (table.shape, indices.shape, made.shape) == ((64, 32), (2, 16), (2, 16, 32))
    section = next(
        i
        for i, s in enumerate(program.sections)
        if s.kinds == (SectionKind.FWD,) and graph.nodes.index(node) in s.steps[0].nodes
    )
    assert section_cost(program, section).bytes_read == found.bytes_read


def flops_of_xla(program: Program, steps) -> float:
    """What XLA says of an executable, without native kernels, which it cannot see."""
    with without_native():
        device = Device(program)
        lowered = device.lower(steps, device.variant)
        # What is counted is XLA's program, whatever LLVM makes of it.
        analysis = lowered.compile({"xla_backend_optimization_level": 0}).cost_analysis()
    return (analysis[0] if isinstance(analysis, list) else analysis)["flops"]


BAND = (0.97, 1.10)
"""XLA's operations over the products of programs that hardly do anything else. XLA counts other
operations too, but for exponentials and their like; and of a convolution no place beside the
image."""


def test_products_against_xla_s_own_analysis():
    """A network of products of which others are a few per cent."""
    case = res_ffn(batch=64, width=256, classes=256)
    program = compiled(case)
    steps = tuple(
        step
        for step in all_steps(program, 0)
        if program.sections[step[0]].kinds != (SectionKind.OPT,)
    )
    ratio = flops_of_xla(program, steps) / schedule_cost(program, 0).product_flops
    assert BAND[0] < ratio < BAND[1]


@pytest.mark.slow
def test_attention_against_xla_s_own_analysis():
    case = gpt(batch=1, length=64, vocabulary=512, layers=1, heads=2, width=256)
    program = compiled(case)
    for steps, products in _by_section(program):
        if products:
            ratio = flops_of_xla(program, steps) / products
            assert BAND[0] < ratio < BAND[1], f"{steps}: {ratio}"


def _by_section(program: Program):
    for index, section in enumerate(program.sections):
        yield (
            tuple((index, k) for k in range(len(section.steps))),
            section_cost(program, index).product_flops,
        )
