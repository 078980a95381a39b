"""Changes of what a program means, and repairs that let more of them through the verifier.

A blind change is mostly refused by the rule that it breaks, and nothing behind that rule is
tried. Here a shape changes wherever it stands, lists stay sorted, and names stay different.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from pef_schema.program import Role, SectionKind
from pef_schema.rows import ArgTag
from tests.pef_schema.fuzz.mutate_rows import RowMutation, number, token
from tests.pef_schema.fuzz.seeds import Tree, members

_SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 16, 33, 1000, 2**16, 2**31, 2**47, 2**48)
_OPTIONS = (
    *("amsgrad", "beta1", "beta2", "dampening", "eps", "maximize", "nesterov", "warmup_steps"),
    "other",
)
_HYPER = ("lr", "momentum", "weight_decay", "other")


def one_of(*tables: str) -> Callable[[Callable[..., None]], RowMutation]:
    """A change of one row of these tables, which is drawn; of a program without any, none."""

    def with_row(change: Callable[..., None]) -> RowMutation:
        def mutation(rng: random.Random, tree: Tree) -> None:
            if found := [row for table in tables for row in tree.of(table)]:
                change(rng, tree, rng.choice(found))

        return mutation

    return with_row


@one_of("Region", "Value")
def reshape(rng: random.Random, tree: Tree, row: list[Any]) -> None:
    """Give a region or a value another shape: permuted, longer, shorter, larger, empty."""
    shape = list(row[1])
    kind = rng.randrange(5)
    if kind == 0:
        rng.shuffle(shape)
    elif kind == 1:
        shape.insert(rng.randrange(len(shape) + 1), rng.choice(_SIZES))
    elif kind == 2 and shape:
        del shape[rng.randrange(len(shape))]
    elif shape:
        shape[rng.randrange(len(shape))] = rng.choice(_SIZES)
    row[1] = tuple(shape)


@one_of("Region", "Value")
def retype(rng: random.Random, tree: Tree, row: list[Any]) -> None:
    """Give a region or a value another dtype."""
    row[2] = rng.choice(members("Region", "dtype"))


@one_of("Region")
def recast(rng: random.Random, tree: Tree, region: list[Any]) -> None:
    """Give a region another role."""
    region[3] = rng.choice(members("Region", "role"))


def exchange_args(rng: random.Random, tree: Tree) -> None:
    """Let a node take another argument of the same kind, or one of another kind in its place."""
    found = [row for row in tree.of("Node") if row[1] and len(row[1]) == len(row[2])]
    if not found:
        return
    node = rng.choice(found)
    tags, bits, texts = bytearray(node[1]), list(node[2]), list(node[3])
    at = rng.randrange(len(tags))
    if tags[at] == ArgTag.LIST:
        return
    if tags[at] == ArgTag.REF and rng.random() < 0.7:
        bits[at] = rng.randrange(max(1, bits[at] + 2))
    else:
        new = token(rng, texts)
        while new[0] == ArgTag.LIST or (rng.random() < 0.6 and new[0] != tags[at]):
            new = token(rng, texts)
        tags[at], bits[at] = new
    node[1:4] = [bytes(tags), tuple(bits), tuple(texts)]


def exchange_ops(rng: random.Random, tree: Tree) -> None:
    """Let two nodes exchange their operations."""
    found = tree.of("Node")
    if len(found) > 1:
        one, two = rng.sample(found, 2)
        one[0], two[0] = two[0], one[0]


def forget_argument(rng: random.Random, tree: Tree) -> None:
    """Take the last argument or a keyword's name from a node."""
    found = [row for row in tree.of("Node") if row[1] and row[1][-1] != ArgTag.LIST]
    if not found:
        return
    node = rng.choice(found)
    if node[4] and rng.random() < 0.5:
        node[4] = node[4][1:]
    else:
        node[1], node[2], node[4] = node[1][:-1], node[2][:-1], node[4][: len(node[1]) - 1]


@one_of("Step")
def change_step(rng: random.Random, tree: Tree, step: list[Any]) -> None:
    """Change what a step does, reads, writes or works on."""
    kind = rng.randrange(6)
    if kind == 0:
        step[0] = rng.choice(members("Step", "kind"))
        on_graph = step[0] in (SectionKind.FWD, SectionKind.BCKWD)
        step[1] = max(step[1], 0) if on_graph else step[1]
    elif kind == 1:
        step[1] = rng.randrange(-1, len(tree.root[5]) + 1)
    elif kind == 2:
        step[5] = float(number(rng, "d", step[5], []))
    elif kind == 3:
        step[4] = tuple(range(rng.randrange(len(tree.root[6]) + 1)))
    else:
        place = rng.choice((2, 3, 6, 6, 6, 7, 7, 7, 8))
        most = len(tree.root[3]) if place > 5 else 16
        items = set(step[place])
        if items and rng.random() < 0.6:
            items.remove(rng.choice(sorted(items)))
        elif most:
            items.add(rng.randrange(most))
        step[place] = tuple(items)


def change_schedule(rng: random.Random, tree: Tree) -> None:
    """Drop, repeat, reorder or redirect calls, or give a schedule to another graph."""
    found = tree.of("Schedule")
    if not found:
        return
    schedule = rng.choice(found)
    calls = list(schedule[1])
    kind = rng.randrange(6)
    if kind == 0:
        rng.shuffle(found)
        tree.root[9] = found
    elif kind == 1 and rng.random() < 0.3:
        tree.root[9] = [s for s in found if s is not schedule]
    elif kind == 2:
        schedule[0] = rng.randrange(len(tree.root[5]) + 1)
    elif calls and kind == 3:
        del calls[rng.randrange(len(calls))]
    elif calls and kind == 4:
        calls.insert(rng.randrange(len(calls)), list(rng.choice(calls)))
    elif calls:
        rng.choice(calls)[1] = rng.randrange(max(1, len(tree.root[8])))
    schedule[1] = calls


@one_of("Optimizer")
def change_optimizer(rng: random.Random, tree: Tree, optimizer: list[Any]) -> None:
    """Change kind, options, hyperparameters, states or step count of an optimizer."""
    options, argins = list(optimizer[4]), list(optimizer[3])
    kind = rng.randrange(8)
    if kind == 0:
        optimizer[1] = rng.choice(members("Optimizer", "kind"))
    elif kind == 1 and options:
        del options[rng.randrange(len(options))]
    elif kind == 2 and options:
        rng.choice(options)[1] = float(number(rng, "d", 0.0, []))
    elif kind == 3:
        options.append([rng.choice(_OPTIONS), float(number(rng, "d", 1.0, []))])
    elif kind == 4 and argins:
        del argins[rng.randrange(len(argins))]
    elif kind == 5 and argins:
        rng.choice(argins)[0] = rng.choice(_HYPER)
    elif kind == 6:
        optimizer[5] = -1 if rng.random() < 0.5 else rng.randrange(max(1, len(tree.root[3])))
    else:
        for param in optimizer[2]:
            param[2] = param[2][:-1] if rng.random() < 0.9 else (*param[2], *param[2][:1])
    optimizer[3], optimizer[4] = argins, options


def change_argin(rng: random.Random, tree: Tree) -> None:
    """Change kind, default or region of a hyperparameter, or leave it out."""
    found = tree.of("Argin")
    if not found:
        return
    argin = rng.choice(found)
    kind = rng.randrange(4)
    if kind == 0:
        argin[2] = rng.choice(members("Argin", "kind"))
    elif kind == 1:
        argin[3] = float(number(rng, "d", argin[3], []))
    elif kind == 2:
        argin[1] = rng.choice(found)[1]
    else:
        tree.root[7] = [a for a in found if a is not argin]


@one_of("Graph")
def change_ends(rng: random.Random, tree: Tree, graph: list[Any]) -> None:
    """Change inputs, outputs or updates of a graph."""
    kind = rng.randrange(4)
    outputs, updates = list(graph[4]), list(graph[5])
    if kind == 0 and graph[3]:
        graph[3] = tuple(rng.sample(graph[3], rng.randrange(len(graph[3]) + 1)))
    elif kind == 1 and outputs:
        output = rng.choice(outputs)
        output[4] = rng.choice(members("Output", "grad"))
        if output[4] == 3 or output[3] < 0:
            output[3], output[4] = -1, 3
    elif kind == 2 and outputs:
        rng.choice(outputs)[1] = rng.randrange(max(1, len(graph[1])))
    elif updates:
        del updates[rng.randrange(len(updates))]
    elif outputs:
        del outputs[rng.randrange(len(outputs))]
    graph[4], graph[5] = outputs, updates


@one_of("Value")
def change_value(rng: random.Random, tree: Tree, value: list[Any]) -> None:
    """Change where a value lives, where its gradient does, and whether it has one."""
    kind = rng.randrange(3)
    if kind == 2:
        value[5] = not value[5]
    else:
        value[3 + kind] = rng.choice((-1, rng.randrange(max(1, len(tree.root[3])))))


def double_section(rng: random.Random, tree: Tree) -> None:
    """Put a section in twice, or leave one out."""
    sections = list(tree.root[8])
    if sections:
        at = rng.randrange(len(sections))
        if rng.random() < 0.3:
            del sections[at]
        else:
            name, steps, twin = sections[at]
            sections.append([name, [list(step) for step in steps], twin])
        tree.root[8] = sections


def repair(tree: Tree) -> None:
    """Put in order what has an order, and let forms and names agree that must."""
    root = tree.root
    regions = root[3]
    _repair_names(root)
    _repair_forms(root, regions)
    sizes = {2: 0, 3: 0, 4: len(root[6]), 6: len(regions), 7: len(regions), 8: len(regions)}
    for index, section in enumerate(root[8]):
        section[2] = index
        for step in section[1]:
            graph = root[5][step[1]] if 0 <= step[1] < len(root[5]) else None
            sizes[2] = sizes[3] = len(graph[2]) if graph else 0
            for place, size in sizes.items():
                step[place] = tuple(sorted({i for i in step[place] if 0 <= i < size}))
            step[8] = tuple(i for i in step[8] if i in step[7])
    for schedule in root[9]:
        for number_, call in enumerate(schedule[1]):
            call[0] = number_


def _repair_names(root: list[Any]) -> None:
    groups = [root[i] for i in (3, 4, 5, 6, 7, 8)]
    groups += [graph[1] for graph in root[5]]
    groups += [gradient[2] for graph in root[5] for gradient in graph[6]]
    for optimizer in root[6]:
        optimizer[4] = [list(pair) for pair in sorted({o[0]: o for o in optimizer[4]}.values())]
        optimizer[3] = list({a[0]: a for a in optimizer[3]}.values())
    for rows in groups:
        seen: set[str] = set()
        for index, row in enumerate(rows):
            if row[0] in seen:
                row[0] = f"{row[0][:900]}_{index}"
            seen.add(row[0])


def _repair_forms(root: list[Any], regions: list[Any]) -> None:
    def follow(index: int, row: list[Any], *, dtype: bool) -> None:
        if 0 <= index < len(regions) and regions[index][4] < 0:
            regions[index][1] = row[1]
            if dtype:
                regions[index][2] = row[2]

    for optimizer in root[6]:
        for weight, grad, states in optimizer[2]:
            if 0 <= weight < len(regions):
                for other in (grad, *states):
                    follow(other, regions[weight], dtype=False)
    for argin in root[7]:
        if 0 <= argin[1] < len(regions):
            argin[2] = 5 if regions[argin[1]][3] == Role.SEED else argin[2]
    for graph in root[5]:
        values = graph[1]
        for value in values:
            if 0 <= value[3] < len(regions):
                value[1:3] = regions[value[3]][1:3]
            follow(value[4], value, dtype=False)
        for output in graph[4]:
            if 0 <= output[1] < len(values):
                follow(output[2], values[output[1]], dtype=True)
                follow(output[3], values[output[1]], dtype=False)
        for update in graph[5]:
            if 0 <= update[0] < len(values):
                follow(update[1], values[update[0]], dtype=True)


SOUND_MUTATIONS: tuple[RowMutation, ...] = (
    reshape, retype, recast, exchange_args, exchange_ops, forget_argument, change_step,
    change_schedule, change_optimizer, change_argin, change_ends, change_value, double_section,
)  # fmt: skip
"""All of them."""
