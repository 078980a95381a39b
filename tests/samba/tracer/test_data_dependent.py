"""Selections by value and loops over hits: traced once, right for whatever data come later."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pef_schema.program import Role
from samba.tracer.capture import trace_model
from samba.tracer.errors import DataDependentBranch, UnsupportedOps
from samba.tracer.inputs import collect_inputs
from samba.tracer.reference import run_reference
from samba.tracer.traced import Traced
from tests.samba.refusals import line_of
from tests.tracing import trace


def run(traced: Traced, inputs: tuple[Tensor, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs of a traced graph, run by torch, and gradients of its weights and inputs."""
    given = iter(inputs)
    sources = {}
    for source in traced.sources:
        tensor = next(given) if source.role is Role.INPUT else source.tensor
        assert tensor is not None
        floats = source.role is not Role.CONSTANT and tensor.is_floating_point()
        sources[source.value] = tensor.detach().clone().requires_grad_(floats)
    env = run_reference(traced, sources)
    outputs = [env[o.value] for o in traced.outputs]
    leaves = [s for s in sources.values() if s.requires_grad]
    return outputs, list(torch.autograd.grad(outputs[0].sum(), leaves, allow_unused=True))


def check(model: nn.Module, *batches: tuple[Tensor, ...]) -> Traced:
    """Trace on the first batch; every batch must give the model's own results and gradients."""
    traced = trace(model, batches[0])
    for batch in batches:
        leaves = [*model.parameters()]
        fresh = [b.clone().requires_grad_(b.is_floating_point()) for b in batch]
        want = model(*fresh)
        want = want if isinstance(want, tuple) else (want,)
        leaves += [f for f in fresh if f.requires_grad]
        gradients = torch.autograd.grad(want[0].sum(), leaves, allow_unused=True)
        outputs, found = run(traced, batch)
        torch.testing.assert_close(outputs, [w.detach() for w in want], equal_nan=True)
        assert len(found) == len(gradients)
        for got, wanted in zip(found, gradients, strict=True):
            zero = torch.zeros(()) if got is None and wanted is None else None
            got = torch.zeros_like(wanted) if got is None and wanted is not None else got
            wanted = torch.zeros_like(got) if wanted is None and got is not None else wanted
            if zero is None:
                torch.testing.assert_close(got, wanted)
    return traced


class Experts(nn.Module):
    """The loop of many mixtures of experts; ``kind`` is how it reads and writes rows."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.up = nn.Parameter(torch.randn(3, 6, 8))
        self.down = nn.ModuleDict({f"expert_{i}": nn.Linear(6, 8) for i in range(3)})

    def forward(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        mask = F.one_hot(chosen, num_classes=4).permute(2, 1, 0)
        hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
        out = torch.zeros_like(x)
        if self.kind == "list":
            hit = hit.flatten().tolist()
        for entry in hit:
            number = entry if self.kind == "list" else entry[0]
            if number == 3:
                continue
            place, token = torch.where(mask[number])
            hidden = F.linear(x[None, token].reshape(-1, 8), self.up[number]).softmax(-1)
            part = self.down[f"expert_{number}"](hidden) * weights[token, place, None]
            if self.kind == "put":
                out.index_put_((token,), part, accumulate=True)
            else:
                out.index_add_(0, token, part.to(out.dtype))
        return out


def routed(chosen: list[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(3, 8), torch.rand(3, 2), torch.tensor(chosen)


@pytest.mark.parametrize(
    "kind", ["add", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("list", "put"))]
)
def test_a_loop_over_the_experts_that_were_hit(kind: str) -> None:
    """The third batch hits what is none, the second leaves experts out."""
    batches = [[[0, 1], [1, 2], [2, 0]], [[1, 2], [2, 1], [1, 2]], [[3, 3], [3, 2], [2, 3]]]
    check(Experts(kind), *map(routed, batches))


class Selected(nn.Module):
    """One way of using a selection."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        chosen = mask > 0
        match self.kind:
            case "sum":
                return self.layer(x[chosen]).tanh().sum(0)
            case "mean":
                return self.layer(x[chosen]).log_softmax(-1).mean()
            case "mean of columns":
                return self.layer(x[chosen]).mean(dim=(0,))
            case "masked_select":
                return (torch.masked_select(x, x > 0).log() * 2).sum()
            case "write back":
                out = x.clone()
                out[chosen] = self.layer(x[chosen])
                return out
            case "add back":
                out = x * 2
                out[chosen] += self.layer(x[chosen]).relu()
                return out
            case _:
                rows = torch.nonzero(chosen)
                out = torch.zeros_like(x)
                return out.index_put((rows[:, 0], rows[:, 1]), x[rows[:, 0], rows[:, 1]], True)


KINDS = [
    *("sum", "mean", "write back", "add back"),
    *(
        pytest.param(kind, marks=pytest.mark.slow)
        for kind in ("mean of columns", "masked_select", "nonzero")
    ),
]


ROWS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mask": lambda h, mask: h[mask],
    "masked_select": lambda h, mask: h.masked_select(mask),
    "where": lambda h, mask: h[torch.where(mask)[0]],
    "nonzero": lambda h, mask: h[mask.nonzero()[:, 0]],
    "index_select": lambda h, mask: h.index_select(0, mask.nonzero().squeeze(1)),
    "embedding": lambda h, mask: F.embedding(mask.nonzero()[:, 0], h[:, None]).squeeze(1),
}
"""Ways of taking the rows that a mask says."""
STEEP: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sqrt": lambda rows, scale: (rows * scale).sqrt(),
    "log": lambda rows, scale: rows.log() * scale,
    "acosh": lambda rows, scale: (rows * scale + 1).acosh(),
    "atanh": lambda rows, scale: (rows * scale + 1).atanh(),
    "pow": lambda rows, scale: (rows * scale) ** 0.5,
    "quotient": lambda rows, scale: rows / (rows * scale),
    "denominator": lambda rows, scale: rows / (scale - scale.detach()),
    "rsqrt": lambda rows, scale: (rows * scale).rsqrt() * scale,
    "exp": lambda rows, scale: ((rows + 1000) * scale).exp(),
    "times": lambda rows, scale: rows * scale,
}
"""Computations whose slopes, or values, are not finite where a row is 0, 1 or not a number."""


class Steep(nn.Module):
    """Computes from rows what has no finite slope at those that are not selected."""

    def __init__(self, rows: str, steep: str) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(4))
        self.factor = nn.Parameter(torch.tensor(1.0))
        self.rows, self.steep = ROWS[rows], STEEP[steep]

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = x + self.shift
        return self.steep(self.rows(h, mask), self.factor).sum() + h.nan_to_num().sum()


@pytest.mark.parametrize(
    ("rows", "steep"), [*(("mask", steep) for steep in STEEP), ("where", "sqrt"), ("where", "log")]
)
def test_rows_that_are_not_selected_have_no_gradient(rows: str, steep: str) -> None:
    """Nor has a weight one from them, even where none is selected."""
    x = torch.tensor([0.0, 1.5, 4.0, 0.0])
    batches = [(x, x > 9), *([(x, x > 0)] if steep not in ("atanh", "denominator") else [])]
    check(Steep(rows, steep), *batches)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("steep", ["sqrt", "times"])
def test_however_rows_are_taken_the_others_have_no_gradient(rows: str, steep: str) -> None:
    x = torch.tensor([math.nan if steep == "times" else 0.0, 1.0, 4.0, 0.0])
    check(Steep(rows, steep), (x, x > 9), (x, x > 0))


@pytest.mark.parametrize("find", [torch.nonzero, torch.argwhere, torch.where])
def test_places_in_a_single_number_are_refused(find: Callable[[Tensor], Tensor]) -> None:
    """Its one place has no columns."""

    class Places(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return find(x)

    with pytest.raises(UnsupportedOps, match="the shape of its result depends on data"):
        trace(Places(), (torch.tensor(2.0),))


@pytest.mark.parametrize(
    "use", [torch.sum, lambda places: places.sum(1), lambda places: places.squeeze().float().mean()]
)
def test_uses_of_places_in_a_single_number_are_refused_for_its_places(
    use: Callable[[Tensor], Tensor],
) -> None:
    """Not for the sizes of what is used, which no kernel can be asked about."""

    class Uses(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return use(x.nonzero())

    with pytest.raises(UnsupportedOps, match="the shape of its result depends on data") as caught:
        trace(Uses(), (torch.tensor(2.0),))
    assert [op.name for op in caught.value.ops] == ["aten.nonzero.default"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_selection_whose_rows_meet_again(kind: str) -> None:
    x = torch.randn(2, 3, 4).exp() - 0.5
    masks = [
        torch.tensor([[1, 0, 2], [0, 3, 0]]),
        torch.ones(2, 3),
        torch.tensor([[0] * 3, [0, 0, 1]]),
    ]
    nothing = torch.zeros(2, 3)
    if kind in ("write back", "sum"):
        masks.append(nothing)
    traced = check(Selected(kind), *((x, mask.float()) for mask in masks))
    if kind == "mean":
        assert math.isnan(run(traced, (x, nothing))[0][0].item())


REFUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "result": lambda rows: rows,
    "count": lambda rows: rows.sum() / rows.shape[0],
    "mixed": lambda rows: rows.cumsum(0).sum(),
    "softmax": lambda rows: rows.softmax(0).sum(),
    "product": lambda rows: (rows.T @ rows).sum(),
    "merged": lambda rows: rows.reshape(-1).sort().values.sum(),
    "first": lambda rows: rows[:1].sum(),
    "max": lambda rows: rows.max(),
}
"""Uses of a selection that have no form of fixed length."""
FAST = {"result", "count", "mixed"}


@pytest.mark.parametrize(
    "kind", [k if k in FAST else pytest.param(k, marks=pytest.mark.slow) for k in REFUSED]
)
def test_anything_else_is_refused(kind: str) -> None:
    class Refused(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return REFUSED[kind](x[x[:, 0] > 0])  # selected

    with pytest.raises(UnsupportedOps, match="the shape of its result depends on data") as caught:
        trace(Refused(), torch.randn(5, 3))
    (op,) = caught.value.ops
    assert (op.name, op.lines) == ("aten.index.Tensor", (line_of(__file__, "selected"),))


class SteepTurns(nn.Module):
    """A loop whose turns compute from rows what has no finite slope at those that are not hit."""

    def __init__(self, write: str, steep: str) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(2))
        self.factor = nn.Parameter(torch.tensor([1.0, 1.0]))
        self.write, self.steep = write, STEEP[steep]

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = x + self.shift
        out = torch.ones_like(x)
        for row in mask.nonzero():
            part = self.steep(h[row[0]], self.factor)
            match self.write:
                case "add":
                    out.index_add_(0, row, part[None])
                case "own":
                    out[row[0]] += part
                case _:
                    out[row[0]] = part
        return out + h.nan_to_num()


@pytest.mark.parametrize(
    ("write", "steep"),
    [("add", steep) for steep in STEEP]
    + [(write, steep) for write in ("own", "set") for steep in ("sqrt", "times")],
)
def test_turns_that_do_not_take_place_have_no_gradient(write: str, steep: str) -> None:
    """Nor has a weight one from them."""
    x = torch.tensor([[1.5, 3.0], [0.0, 0.0], [4.0, 2.0], [math.nan, 0.0]])
    check(SteepTurns(write, steep), (x, torch.zeros(4)), (x, torch.tensor([1.0, 0, 2, 0])))


class Escaping(nn.Module):
    """Loops whose turns leave more behind than what they write."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        out, parts, turns = torch.zeros(3), [], 0
        for row in (x[:, 0] > 0).nonzero():
            if self.kind == "sum":
                out = out + x[row[0]]
            elif self.kind == "list":
                parts.append(x[row[0]])
            elif self.kind == "last":
                out = x[row[0]]
            elif self.kind == "left":
                out += x[row[0]]
                break
            elif self.kind == "counted":
                turns += 1
                out += turns * x[row[0]]
            else:
                out += self.norm(x).sum(0)
        return torch.stack(parts) if parts else out


@pytest.mark.parametrize(
    "kind",
    [
        *("list", "left", "counted", "state"),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("sum", "last")),
    ],
)
def test_a_loop_may_only_write(kind: str) -> None:
    model = Escaping(kind)
    given = collect_inputs(model, torch.randn(5, 3))
    with pytest.raises(DataDependentBranch, match="index_add_") as caught:
        trace_model(model, given)
    assert __file__ in caught.value.where


def last_number(x: Tensor, hits: Tensor) -> Tensor:
    out, last = torch.zeros(3), 0
    for number in hits.flatten().tolist():
        out += x[number]
        last = number
    return out * last


def number_behind_the_loop(x: Tensor, hits: Tensor) -> Tensor:
    out = torch.zeros(3)
    for number in hits.flatten().tolist():
        out += x[number]
    return out * number  # pyright: ignore[reportPossiblyUnboundVariable]  # this is what is tried


def counted_from_below(x: Tensor, hits: Tensor) -> Tensor:
    """The count is the number of the entry where all are hit, as in a trace."""
    out, count = torch.zeros(3), -1
    for number in hits.flatten().tolist():
        count += 1
        out += x[number] * count
    return out


def several_at_once(x: Tensor, hits: Tensor) -> Tensor:
    out = torch.zeros(3)
    for row in hits:
        torch._foreach_add_([out], [x[row[0]]])  # pyright: ignore[reportPrivateImportUsage]  # as scripts call it
    return out


def counted_by_a_list(x: Tensor, hits: Tensor) -> Tensor:
    out, seen = torch.zeros(3), []
    for row in hits:
        seen.append(1)
        out += x[row[0]]
    return out * len(seen)


def counted_by_a_text(x: Tensor, hits: Tensor) -> Tensor:
    out, seen = torch.zeros(3), ""
    for row in hits:
        seen += "x"
        out += x[row[0]]
    return out * len(seen)


class Looping(nn.Module):
    def __init__(self, loop: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.loop = nn.Parameter(torch.ones(3)), loop

    def forward(self, x: Tensor) -> Tensor:
        return self.loop(x * self.weight, (x[:, 0] > 0).nonzero())


@pytest.mark.parametrize(
    "loop",
    [
        *(last_number, number_behind_the_loop, counted_from_below, several_at_once),
        *(counted_by_a_list, counted_by_a_text),
    ],
)
def test_a_loop_leaves_no_number_and_no_list(loop: Callable[[Tensor, Tensor], Tensor]) -> None:
    with pytest.raises(DataDependentBranch, match="index_add_") as caught:
        trace(Looping(loop), torch.randn(5, 3))
    assert __file__ in caught.value.where


def test_a_variable_of_a_loop_may_be_used_again() -> None:
    def loop(x: Tensor, hits: Tensor) -> Tensor:
        out, seen = torch.zeros(3), []
        for number in hits.flatten().tolist():
            seen.append(number)  # nobody reads it
            out += x[number]
        for number in range(2):
            out += number
        return out

    x = torch.rand(3, 3) + 0.5
    check(Looping(loop), (x,), (x * torch.tensor([[1.0], [-1.0], [1.0]]),))


class Listed(nn.Module):
    """Uses of what was hit, other than a loop over it."""

    def __init__(self, use) -> None:
        super().__init__()
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        hits = (x[:, 0] > 0).nonzero()
        out = torch.zeros(3)
        for part in self.use(hits.flatten().tolist(), hits):
            out += x[part].sum()
        return out


USES = {
    "enumerate": lambda numbers, rows: (i for i, _ in enumerate(rows)),
    "zip": lambda numbers, rows: (i for i, _ in zip(range(5), rows, strict=False)),
    "sorted": lambda numbers, rows: sorted(numbers),
    "length": lambda numbers, rows: range(len(numbers)),
    "in": lambda numbers, rows: [3] if 3 in numbers else [],
    "comparison": lambda numbers, rows: [1] if numbers == [1] else [],
    "comprehension": lambda numbers, rows: [i + 1 for i in numbers],
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_hits_are_for_loops_alone(use) -> None:
    with pytest.raises(DataDependentBranch, match="without enumerate") as caught:
        trace(Listed(use), torch.randn(5, 3))
    assert __file__ in caught.value.where


def test_writes_of_turns_that_do_not_take_place_are_undone() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(3)

        def forward(self, x: Tensor) -> Tensor:
            out, signs = x.sum(1), torch.arange(3.0) - 1
            for row in (x[:, 0] > 0).nonzero():
                out.view(-1)[row[0]] = 7.0
                out += x[row[0]].prod()
                F.relu(signs, inplace=True)
                torch.relu_(input=signs)
            seen = torch.zeros(3, dtype=torch.bool)
            for number in torch.argwhere(x[:, 1] > 0).squeeze(1).tolist():
                seen |= x[:, 0] > x[number, 0]
                seen[number] ^= True
            (rows,) = (x[:, 2] > 0).nonzero().unbind(dim=1)
            return (out * signs * seen).index_add(0, rows, self.norm(x[rows])[:, 0])

    x = torch.randn(3, 3)
    check(Writes(), (x,), (-x.abs(),), (x.abs(),))
