"""What calls after the traced ones may do: refused where it changes results, else told."""

from __future__ import annotations

import collections
import itertools
import logging

import pytest
import torch

from samba.tracer.changed_state import ChangedAttributes
from tests.samba.tracer.layers import Layer, compiled


class EveryFew(Layer):
    """Does something else in every k-th call: two graphs in a row that are equal prove nothing."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k, self.n = k, 0

    def forward(self, x):
        self.n += 1
        return self.lin(x) * (2.0 if self.n % self.k == 0 else 1.0)


class Slotted:
    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0


class OfASlot(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.state = Slotted()

    def forward(self, x):
        self.state.n += 1
        return self.lin(x) * (2.0 if self.state.n == 3 else 1.0)


class OfADefault(Layer):
    def forward(self, x, log=[]):  # noqa: B006  # this is what is tried
        log.append(1)
        return self.lin(x) * (2.0 if len(log) > 2 else 1.0)


class Looks(Layer):
    """Finds in the second call what it would have found there by chance in the first."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.ones(2, 3)

    def forward(self, x):
        y = self.lin(x) * self.last
        self.last = y.detach()
        return y


class Twice(Layer):
    """One count decides about the other, and that about the result."""

    def __init__(self) -> None:
        super().__init__()
        self.n = self.tens = 0

    def forward(self, x):
        self.n += 1
        self.tens = self.n // 10
        return self.lin(x) * (1.0 + min(self.tens, 1))


class Named(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.n, self.table = 0, {"9": 2.0}

    def forward(self, x):
        self.n += 1
        return self.lin(x) * self.table.get(f"{self.n}", 1.0)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        *[(lambda k=k: EveryFew(k), "n") for k in (2, 1000)],
        *[pytest.param(lambda k=k: EveryFew(k), "n", marks=pytest.mark.slow) for k in (1, 3, 7)],
        *[(OfASlot, "state.n"), (OfADefault, "log"), (Looks, "last"), (Twice, "n"), (Named, "n")],
    ],
)
def test_what_a_later_call_may_do_is_refused(tmp_path, make, name):
    with pytest.raises(ChangedAttributes) as caught:
        compiled(make(), tmp_path)
    assert name in caught.value.names
    assert "then computes something else" in str(caught.value) or (
        f"{name} is read at {__file__}:" in str(caught.value)
    )


class Counts(Layer):
    """Counts, averages, rotates and logs, and reads nothing of it but to show it."""

    def __init__(self) -> None:
        super().__init__()
        self.n, self.mean, self.text, self.turn = 0, 0.5, "", 0
        self.last, self.window = [0], collections.deque(maxlen=2)
        self.parts: dict[str, object] = {}
        self.pair = (1, None)
        self.numbers = itertools.count()

    def forward(self, x):
        self.n += 1
        self.mean = 0.9 * self.mean + 0.1 * self.n
        self.text += "x"
        self.turn = (self.turn + 1) % 1000
        self.last = self.last[-3:] + [self.n]  # noqa: RUF005  # unpacking reads
        self.window.append(self.mean)
        self.parts["n"] = -self.n
        self.pair = (self.pair[0] * 2, None)
        next(self.numbers)
        print(f"call {self.n}", self.mean)
        logging.getLogger("user").warning("call %d: %s", self.n, self.text)
        y = self.lin(x)
        self.parts["y"] = y.detach()
        if self.n % 100 == 0:
            print("a hundred more")
        return y


def test_what_is_counted_and_shown_alone_compiles(tmp_path, caplog):
    compiled(Counts(), tmp_path)
    (told,) = [r.getMessage() for r in caplog.records if "unchanged-attribute" in r.getMessage()]
    assert "which its results do not depend on" in told


class Toggles(Layer):
    """Is in each of three states again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = 0

    def forward(self, x):
        self.turn = (self.turn + 1) % 3
        return self.lin(x) * (1.0, 1.0, 1.0)[self.turn]


def test_states_that_come_again_are_known(tmp_path, caplog):
    compiled(Toggles(), tmp_path)
    assert "Toggles changes turn, which its results do not depend on" in caplog.text
