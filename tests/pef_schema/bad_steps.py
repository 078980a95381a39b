"""Broken files: what steps read and write, what schedules run, what optimizers and argins hold."""

from __future__ import annotations

import dataclasses
from typing import Any

from pef_schema import (
    ArginKind,
    Call,
    DType,
    OptimizerKind,
    OptimizerParam,
    Program,
    Region,
    Role,
    Schedule,
    Section,
    SectionKind,
)
from tests.pef_schema.cases import REDUCE, edit, edited, meaning, optimizer

_S = "sections.{}.steps.0"


def _step(case: str, text: str, section: int, /, **changes: Any) -> None:
    edited(case, text, _S.format(section), **changes)


edited("gradient_role", "its gradient is METRIC, expected", "regions.2", role=Role.METRIC)
edited("home_role", "region 4 is METRIC, which holds no values", "regions.4", role=Role.METRIC)
edited("value_gradient_dtype", "but its gradient is FLOAT16", "regions.2", dtype=DType.FLOAT16)
edited("output_grad_role", "expected OUTPUT_GRADIENT", "regions.6", role=Role.METRIC)
edited("output_grad_dtype", "but its gradient is FLOAT64", "regions.6", dtype=DType.FLOAT64)
edited("whole_gradient", "INT32 carries no gradient", "graphs.0.values.4", dtype=DType.INT32)
_step("forward_reads", "FWD: it uses but does not read 1 (w)", 0, reads=(0, 3, 9))
meaning(
    "forward_saves",
    "FWD: it computes but does not write 4 (h)",
    lambda program: edit(edit(program, _S.format(0), writes=(5, 9)), _S.format(1), reads=(0, 6)),
)
_step("forward_writes", "FWD: it writes but does not compute 10 (norm)", 0, writes=(4, 5, 9, 10))
_step("forward_adds", "it accumulates, which BCKWD steps alone", 0, accumulates=(4,))
_step("backward_writes", "not write gradients 2 (w__grad)", 1, writes=(), accumulates=())
_step("backward_more", "BCKWD: it writes but does not compute 10", 1, writes=(2, 10))
_step("backward_starts", "does not read gradients 6 (loss__grad)", 1, reads=(0, 4))
edited("backward_no_home", "gradients that have no region: w", "graphs.0.values.1", grad_region=-1)
_step("norm_foreign", "it reads more than gradients of its optimizers: 10", 2, reads=(2, 10))
_step("norm_partly", "it reads 0 of 1 gradients", 2, reads=())
_step("norm_unwritten", "it scales but does not write gradients 2", 2, writes=(10,))
_step("norm_place", "that are not a METRIC number: 7", 2, writes=(2, 7))
_step("opt_reads", "OPT: it needs but does not read 8 (lr)", 3, reads=(1, 2, 7))
_step("opt_states", "OPT: it computes but does not write 7", 3, writes=(1,))
_step("opt_writes", "OPT: it writes but does not compute 10", 3, writes=(1, 7, 10))
_step("opt_graph", "a step over regions has graph 0", 3, graph=0)
_step(
    "zerograd_role",
    "it writes regions that are not gradients: 10 (norm)",
    2,
    kind=SectionKind.ZEROGRAD,
    optimizers=(),
    max_norm=0.0,
    reads=(),
    writes=(10,),
)


def _again(case: str, text: str, section: int) -> None:
    """Add a case whose last section does what an earlier one does."""
    meaning(
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
meaning(
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
    meaning(
        case,
        text,
        lambda program: dataclasses.replace(
            _two_graphs(program),
            schedules=tuple(_two_graphs(program).schedules[i] for i in numbers),
        ),
    )


_schedules("schedules_swapped", "schedule 0: it is of graph 1, expected graph 0", 1, 0)
_schedules("schedule_missing", "1 schedules of 2 graphs", 0)
meaning(
    "schedule_other_graph",
    "section 1 is of graph 1, the schedule of graph 0",
    lambda program: edit(_two_graphs(program), "schedules.0", calls=(Call(call_id=0, section=1),)),
)
meaning(
    "no_graph",
    "1 sections, but no graph",
    lambda program: dataclasses.replace(
        program, graphs=(), schedules=(), sections=(Section(name="a", steps=(REDUCE,), twin=0),)
    ),
)
edited("schedule_empty", "no call writes output 0 (loss)", "schedules.0", calls=())


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


meaning("schedule_backwards", "node 1 takes h before any call makes it", _cut)
meaning(
    "forward_homeless",
    "FWD: it uses values that have no region: h",
    lambda program: edit(_cut(program), "graphs.0.values.3", region=-1),
)
edited(
    "argin_infinite", "argin 0 (lr): default inf, not a finite number", "argins.0", default=1e999
)
edited("seed_infinite", "a whole number that torch.manual_seed takes", "argins.1", default=1e999)
edited("seed_fraction", "a whole number that torch.manual_seed takes", "argins.1", default=0.5)
edited("seed_large", "a whole number that torch.manual_seed takes", "argins.1", default=2.0**64)
edited(
    "argin_twice_set", "region 9 has one already", "argins.0", region=9, kind=ArginKind.DROPOUT_SEED
)


def _option(case: str, text: str, name: str, value: float) -> None:
    """Add a case of one option of SGD."""
    edited(case, text, "optimizers.0", options=((name, value),))


_option("option_infinite", "option dampening is inf", "dampening", 1e999)
_option("option_unknown", "no option beta1", "beta1", 0.5)
_option("option_switch", "option nesterov is 2.0, not 0 or 1", "nesterov", 2.0)
_option("option_dampening", "no region for its step count", "dampening", 0.1)
_SGD = "optimizers.0"
edited("optimizer_argin_name", "no argin rate", _SGD, argins=(("rate", 8),))
edited("optimizer_argin_unset", "its lr is region 11, which no argin", _SGD, argins=(("lr", 11),))
edited("optimizer_argin_kind", "by an argin of kind MOMENTUM", "argins.0", kind=ArginKind.MOMENTUM)
edited("optimizer_states", "param 0: 0 states, expected 1", "optimizers.0.params.0", states=())
edited("optimizer_count", "it has no region for its step count", _SGD, kind=OptimizerKind.ADAM)
edited("optimizer_count_role", "its step count is METRIC FLOAT32", "optimizers.0", step=10)
edited(
    "optimizer_dtype", "region 7 is FLOAT16, its weight FLOAT32", "regions.7", dtype=DType.FLOAT16
)
_RATE = "default 1.5, not a number from 0 to 1"
edited("argin_rate", _RATE, "argins.0", kind=ArginKind.DROPOUT_RATE, default=1.5)
_BETA = "option beta1 is 1.0, not a number from 0 to below 1"
_QADAM = {"kind": OptimizerKind.QADAM, "options": (("beta1", 1.0),)}
edited("optimizer_beta", _BETA, "optimizers.0", **_QADAM)


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


meaning("optimizer_state_shared", "region 7 is another parameter's too", _two_params)

optimizer(
    "optimizer_number_dtype",
    "region 14 is FLOAT64, a number is FLOAT32",
    "regions.14",
    dtype=DType.FLOAT64,
)
optimizer(
    "optimizer_number_shape",
    "weight, gradient and states have shapes (4, 3), (4, 3), (4, 3), (4, 3), (4, 3)",
    "regions.14",
    shape=(4, 3),
)
optimizer(
    "optimizer_number_place",
    "weight, gradient and states have shapes (4, 3), (4, 3), (4, 3), (), (4, 3)",
    "optimizers.0.params.0",
    states=(7, 14, 13),
)
_TWO_STATES = (OptimizerParam(weight=1, grad=2, states=(7, 13)),)


def _of_two_states(case: str, text: str, kind: OptimizerKind, **changes: Any) -> None:
    """Add a case of an optimizer of another kind, which has two states."""
    optimizer(case, text, "optimizers.0", kind=kind, params=_TWO_STATES, **changes)


_of_two_states(
    "option_of_another_kind",
    "no option momentum_decay, there are beta1, beta2, eps, maximize",
    OptimizerKind.ADAMAX,
)
_RHO = "option rho is 1.5, not a number from 0 to 1"
_of_two_states("option_above_1", _RHO, OptimizerKind.ADADELTA, options=(("rho", 1.5),))
_STATES = "param 0: 2 states, expected 3"
_of_two_states("optimizer_centered", _STATES, OptimizerKind.RMSPROP, options=(("centered", 1.0),))


# Twins, and sections that do not go together.


def _twins(name: str, text: str, norms: tuple[float, ...], twins: tuple[int, ...]) -> None:
    """Add a case with further GRADNORM sections, which differ in their limits alone."""

    def change(program: Program) -> Program:
        step = program.sections[2].steps[0]
        more = tuple(
            Section(name=f"t{i}", steps=(dataclasses.replace(step, max_norm=norm),), twin=twin)
            for i, (norm, twin) in enumerate(zip(norms, twins, strict=True))
        )
        return dataclasses.replace(program, sections=(*program.sections, *more))

    meaning(name, text, change)


_twins("twin_of_twin", "its twin 5 is not the first of its structure", (0.0, 0.0, 0.0), (4, 4, 5))
_twins("twin_structure", "section 5: its twin 4 has another structure", (1.0, 2.0), (4, 4))
edited("value_grad_index", "value 0: grad_region 99 is out", "graphs.0.values.0", grad_region=99)
meaning(
    "update_twice",
    "region 9 is updated twice",
    lambda program: edit(program, "graphs.0", updates=program.graphs[0].updates * 2),
)
meaning(
    "optimizer_weight_twice",
    "weight 1 comes twice",
    lambda program: edit(program, "optimizers.0", params=program.optimizers[0].params * 2),
)
meaning(
    "optimizer_states_differ",
    "0 states",
    lambda program: edit(
        program,
        "optimizers.0",
        params=(
            *program.optimizers[0].params,
            dataclasses.replace(program.optimizers[0].params[0], states=()),
        ),
    ),
)
edited("step_optimizers_forward", "FWD step with optimizers", "sections.0.steps.0", optimizers=(0,))
edited("step_nodes_update", "OPT step with nodes", "sections.3.steps.0", graph=0, nodes=(0,))
edited("value_rank", "value 4: rank 17, at most 16", "graphs.0.values.4", shape=(1,) * 17)


def _whole(program: Program) -> Program:
    """A second parameter under the optimizer, of integers."""
    roles = (Role.WEIGHT, Role.GRADIENT, Role.OPTIMIZER_STATE)
    count = len(program.regions)
    more = tuple(
        Region(name=f"whole{role}", shape=(2,), dtype=DType.INT32, role=role) for role in roles
    )
    param = OptimizerParam(weight=count, grad=count + 1, states=(count + 2,))
    program = dataclasses.replace(program, regions=(*program.regions, *more))
    return edit(program, "optimizers.0", params=(*program.optimizers[0].params, param))


meaning("optimizer_weight_whole", "is INT32, expected a floating type", _whole)
edited(
    "update_adds",
    "it accumulates, which BCKWD steps alone can",
    "sections.3.steps.0",
    accumulates=(1,),
)
