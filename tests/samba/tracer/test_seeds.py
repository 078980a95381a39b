"""Random numbers behind a seed that ``forward`` gives torch's generator."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

from samba.tracer.random_draws import SeededNumbers
from tests.processes import SECONDS
from tests.samba.refusals import line_of
from tests.tracing import trace


class Draws(nn.Module):
    def __init__(self, seed: Callable[[], object], rate: float = 0.5) -> None:
        super().__init__()
        self.seed, self.drop = seed, nn.Dropout(rate)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seed()
        return x + torch.randn(4)  # draws


class Drops(Draws):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seed()
        return self.drop(x)  # drops


class Forks(Draws):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.random.fork_rng(devices=[]):
            self.seed()
            return x + torch.randn(4)  # forked


_OTHER_STATE = torch.Generator().manual_seed(5).get_state()

SEEDS = {
    "torch's": lambda: torch.manual_seed(5),
    "the generator's": lambda: torch.default_generator.manual_seed(5),
    "a state": lambda: torch.set_rng_state(_OTHER_STATE),
    "a new one": torch.seed,
}


@pytest.mark.parametrize("seed", SEEDS.values(), ids=SEEDS)
@pytest.mark.parametrize(("kind", "mark"), [(Draws, "draws"), (Drops, "drops"), (Forks, "forked")])
def test_draws_behind_a_seed_are_refused(
    kind: type[Draws], mark: str, seed: Callable[[], object]
) -> None:
    torch.manual_seed(5)  # the same seed is a seed, too
    state = torch.get_rng_state()
    with pytest.raises(SeededNumbers, match="after setting its seed or state, which the") as caught:
        trace(kind(seed), torch.ones(2, 4))
    assert "as torch draws behind torch.seed(), leave the seed out" in caught.value.hint
    assert line_of(__file__, mark) in str(caught.value)
    assert caught.value.deviation == "seeded-in-forward"
    assert torch.equal(state, torch.get_rng_state())


class Generates(nn.Module):
    """Draws from a generator, which it makes, seeds or keeps."""

    def __init__(self, made: Callable[[torch.Generator], torch.Generator]) -> None:
        super().__init__()
        self.generator, self.made = torch.Generator().manual_seed(1), made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        generator = self.made(self.generator)
        return x * torch.empty_like(x).bernoulli_(0.5, generator=generator)  # generates


@pytest.mark.parametrize(
    "made", [lambda _: torch.Generator().manual_seed(3), lambda own: own.manual_seed(3)]
)
def test_draws_of_a_generator_that_begins_anew_in_each_call_are_refused(
    made: Callable[[torch.Generator], torch.Generator],
) -> None:
    model = Generates(made)
    state = model.generator.get_state()
    with pytest.raises(SeededNumbers) as caught:
        trace(model, torch.ones(2, 4))
    assert line_of(__file__, "generates") in str(caught.value)
    assert torch.equal(state, model.generator.get_state())


def _drawn_by_another_thread() -> None:
    thread = threading.Thread(target=torch.rand, args=(3,))
    thread.start()
    thread.join(SECONDS)


@pytest.mark.parametrize(
    "model",
    [
        Draws(lambda: torch.set_rng_state(torch.get_rng_state())),
        Draws(torch.initial_seed),
        Draws(_drawn_by_another_thread),
        Drops(SEEDS["torch's"], rate=0.0),
        Generates(lambda own: own),
    ],
)
def test_without_a_seed_or_a_draw_there_is_nothing_to_refuse(model: nn.Module) -> None:
    trace(model, torch.ones(2, 4))
