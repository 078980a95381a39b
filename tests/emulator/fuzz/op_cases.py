"""Arguments of one op, drawn from its schema: ordinary ones, and ones nobody means."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from emulator.op_facts.table import op_facts, signature_of
from tests.emulator.fuzz.op_shapes import Tensorlike, dims_of, structured

EXTREME_INTS = (
    *(0, 1, -1, 2, 3, 7, 64, 65, 100, 1000, 10**5, 10**6, 10**9),
    *(2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**63 - 1, -(2**63)),
)
EXTREME_FLOATS = (
    *(0.0, -0.0, 0.5, 1.0, -1.0, 2.0, 1e-3, 1e3, 1e9, 1e30, 1e300, -1e300, 1e-300, 5e-324),
    *(float("nan"), float("inf"), float("-inf"), 2.0**31, 2.0**63),
)
_STRINGS = ("", "none", "mean", "sum", "trunc", "floor", "ij", "xy", "reduced", "complete", "r")
_STRINGS += (
    "max",
    "min",
    "amax",
    "amin",
    "prod",
    "reflect",
    "constant",
    "linear",
    "L",
    "U",
    "tanh",
)
DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
_WEIGHTS = (40, 12, 6, 5, 12, 10, 3, 5, 5, 6)
_WHOLE = (0, 0, 0, 0, 10, 10, 5, 5, 5, 3)
_LEFT_OUT = frozenset(
    {"device", "layout", "pin_memory", "memory_format", "non_blocking", "generator"}
)
_OPTIONAL = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of a schema.

    Args:
        name: Its name.
        kind: Its type as schemas write it, ``Tensor``, ``List[int]``, ``Optional[float]`` …
        keyword: Whether it is given by name alone.
        has_default: Whether it may be left out.
    """

    name: str
    kind: str
    keyword: bool = False
    has_default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call of one op.

    Args:
        op: Name in the op registry.
        seed: What it was drawn from.
        args, kwargs: As torch's overload takes them; tensors are torch's.
    """

    op: str
    seed: int
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


_KINDS = {"t": "Tensor", "i": "int", "f": "float", "n": "number", "b": "bool", "s": "str"}
"""Types of schemas, by the letters of ``emulator.op_facts.table``."""


def _is_own(op: str) -> bool:
    """Whether torch has no schema of an op."""
    return not op.startswith("aten.") or op == "aten.special_round.decimals"


NOT_DRAWN = frozenset({"samba.custom_gradient"})
"""Takes a function; only a gradient of a program can be one."""


def drawn_ops() -> list[str]:
    """Names of the ops that cases are drawn for, sorted."""
    return sorted(set(op_facts()) - NOT_DRAWN)


def torch_overload(op: str) -> Callable[..., Any] | None:
    """Torch's overload of an op's name; None where torch has none."""
    if _is_own(op):
        return None
    namespace, packet, overload = op.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def arguments_of(op: str) -> tuple[Argument, ...]:
    """The arguments of an op that reach its lowering."""
    if _is_own(op):
        signature = signature_of(op)
        assert signature is not None
        return tuple(
            Argument(
                name=p.name,
                kind="Seed" if op == "samba.next_seed" else _KINDS[p.kind],
                keyword=p.keyword,
                has_default=p.default,
            )
            for p in signature.parameters
            if not (p.default and p.name in ("seed", "stream"))
        )
    overload: Any = torch_overload(op)
    return tuple(
        Argument(
            name=a.name,
            kind="dtype" if a.name in ("dtype", "out_dtype") else str(a.type),
            keyword=a.kwarg_only,
            has_default=a.has_default_value(),
        )
        for a in overload._schema.arguments
        if a.name not in _LEFT_OUT
    )


def draw(op: str, seed: int) -> Case:
    """The case of an op and a seed; the same one every time.

    Args:
        op: Name in the op registry.
        seed: Any int.

    Returns:
        The case: for most seeds arguments of an ordinary form, some of which are then replaced.
    """
    rng = random.Random(f"{op}/{seed}")
    drawn = _Drawn(rng, op)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    stop = False
    for argument in arguments_of(op):
        given = drawn.form.get(argument.name) is not None or not argument.has_default
        wanted = given or rng.random() < _OPTIONAL
        value = drawn.value(argument) if wanted else None
        if argument.keyword:
            if wanted:
                kwargs[argument.name] = value
            continue
        stop = stop or not wanted
        if stop and argument.has_default:
            continue
        args.append(value)
    return Case(op=op, seed=seed, args=tuple(args), kwargs=kwargs)


class _Drawn:
    """Values of one case's arguments, which fit together unless they are wild."""

    def __init__(self, rng: random.Random, op: str) -> None:
        self.rng, self.op = rng, op
        self.numpy = np.random.default_rng(rng.getrandbits(32))
        self.wild = rng.choice((0.0, 0.0, 0.15, 0.15, 0.4, 1.0))
        self.special = rng.choice((0.0, 0.0, 0.2, 0.6))
        self.shape = dims_of(rng)
        whole = re.search(r"gcd|lcm|bitwise|shift|logical|__", op) and rng.random() < 0.8
        self.dtype = rng.choices(DTYPES, _WHOLE if whole else _WEIGHTS)[0]
        self.form: Mapping[str, Any] = structured(op, rng) if rng.random() < 0.9 else {}

    def value(self, argument: Argument) -> Any:
        """A value of one argument."""
        kind = argument.kind
        hint = self.form.get(argument.name)
        if hint is not None and self.rng.random() >= self.wild * 0.5:
            return self._hinted(argument, hint)
        optional = re.fullmatch(r"Optional\[(.*)\]", kind)
        if optional is not None:
            if self.rng.random() < 0.3:
                return None
            kind = optional.group(1)
        element = re.fullmatch(r"List\[(.*)\]", kind)
        if element is not None:
            return self._list(argument.name, element.group(1))
        return self._one(argument.name, kind)

    def _hinted(self, argument: Argument, hint: Any) -> Any:
        if not isinstance(hint, Tensorlike):
            return hint
        dtype = self.dtype if hint.dtype is None else hint.dtype
        if hint.dtype is None and not dtype.is_floating_point:
            dtype = self.rng.choice((torch.float32, torch.float64, dtype))
        del argument
        return self._tensor(hint.shape, dtype, hint.below)

    def _list(self, name: str, kind: str) -> Any:
        count = self.rng.choice((1, 2, 2, 3, 0, 4))
        if kind == "int" and "dim" in name:
            rank = max(len(self.shape), 1)
            return [self.rng.randrange(-rank, rank) for _ in range(self.rng.choice((1, 1, 2)))]
        if kind == "int" and name in ("size", "sizes") and self.rng.random() >= self.wild:
            return self.rng.choice((list(self.shape), [-1], list(self.shape), [2, *self.shape]))
        if kind == "int" and self.rng.random() < 0.5:
            count = max(len(self.shape), 1)
        return [self._one(name, kind) for _ in range(count)]

    def _one(self, name: str, kind: str) -> Any:
        rng = self.rng
        if kind.startswith("Optional["):
            return None if rng.random() < 0.3 else self._one(name, kind[9:-1])
        if kind == "Tensor":
            return self._some_tensor(name)
        if kind == "Seed":
            return torch.tensor([rng.getrandbits(31), 3], dtype=torch.int32)
        if kind == "int":
            return self._int(name)
        if kind == "bool":
            return rng.random() < 0.5
        if kind == "float":
            return self._float()
        if kind == "number":
            return rng.choice((self._int, lambda _: self._float(), lambda _: True))(name)
        if kind == "dtype":
            return rng.choices(DTYPES, _WEIGHTS)[0]
        if kind == "str":
            return rng.choice(_STRINGS)
        raise TypeError(f"{self.op}: no way to draw {name}: {kind}")

    def _int(self, name: str) -> int:
        if name == "reduction":
            return self.rng.randrange(3)  # what another number means differs from loss to loss
        if self.rng.random() < self.wild:
            return self.rng.choice(EXTREME_INTS)
        if "dim" in name or name in ("axis", "source", "destination"):
            rank = max(len(self.shape), 1)
            return self.rng.randrange(-rank, rank)
        return self.rng.choice((0, 1, 1, 2, 2, 3, 4, 5))

    def _float(self) -> float:
        if self.rng.random() < max(self.wild, 0.1):
            return self.rng.choice(EXTREME_FLOATS)
        return self.rng.choice((0.0, 0.1, 0.5, 1.0, 1.5, 2.0, 1e-5))

    def _some_tensor(self, name: str) -> torch.Tensor:
        rng, shape = self.rng, self.shape
        if rng.random() < 0.1:
            shape = tuple(rng.choice((1, d)) for d in shape)[rng.randrange(2) :]
        if rng.random() < self.wild:
            shape = dims_of(rng)
        dtype = self.dtype if rng.random() < 0.85 else rng.choices(DTYPES, _WEIGHTS)[0]
        if ("ind" in name or name == "target") and rng.random() < 0.85:
            return self._tensor(shape, torch.int64, max([*self.shape, 1]))
        if name in ("mask", "condition") and rng.random() < 0.85:
            dtype = torch.bool
        return self._tensor(shape, dtype, None)

    def _tensor(
        self, shape: tuple[int, ...], dtype: torch.dtype, below: int | None
    ) -> torch.Tensor:
        rng = self.numpy
        if dtype == torch.bool:
            return torch.from_numpy(np.asarray(rng.random(shape) < 0.5))
        if dtype.is_floating_point:
            data = np.asarray(rng.standard_normal(shape))
            limit = torch.finfo(dtype)
            odd: tuple[Any, ...] = (
                *(np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0, 1e9, -100.5),
                *(limit.max, limit.min, limit.tiny, limit.tiny / 8),
            )
        else:
            lowest, highest = torch.iinfo(dtype).min, torch.iinfo(dtype).max
            small = (0, below) if below else (0 if lowest == 0 else -5, 10)
            data = np.asarray(rng.integers(*small, size=shape, dtype=np.int64))
            odd = (lowest, highest, lowest + 1, 0, 1, -1 if lowest else 1)
        special = self.special / 4 if below else self.special
        if data.size and self.rng.random() < special:
            flat = data.reshape(-1)
            for _ in range(self.rng.choice((1, 1, 2, flat.size))):
                flat[self.rng.randrange(flat.size)] = self.rng.choice(odd)
        return torch.from_numpy(np.array(data)).to(dtype)
