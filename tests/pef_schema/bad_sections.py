"""Broken files: twins, steps, optimizers and updates that do not go together."""

from __future__ import annotations

import dataclasses

from pef_schema import DType, OptimizerParam, Program, Region, Role, Section
from tests.pef_schema.bad_parts import meaning
from tests.pef_schema.cases import edit


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
meaning(
    "value_grad_index",
    "value 0: grad_region 99 is out",
    lambda program: edit(program, "graphs.0.values.0", grad_region=99),
)
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
meaning(
    "step_optimizers_forward",
    "FWD step with optimizers",
    lambda program: edit(program, "sections.0.steps.0", optimizers=(0,)),
)
meaning(
    "step_nodes_update",
    "OPT step with nodes",
    lambda program: edit(program, "sections.3.steps.0", graph=0, nodes=(0,)),
)
meaning(
    "value_rank",
    "value 4: rank 17, at most 16",
    lambda program: edit(program, "graphs.0.values.4", shape=(1,) * 17),
)


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


meaning("optimizer_weight_whole", "is INT32, wanted a floating type", _whole)
meaning(
    "update_adds",
    "it accumulates, which BCKWD steps alone can",
    lambda program: edit(program, "sections.3.steps.0", accumulates=(1,)),
)
