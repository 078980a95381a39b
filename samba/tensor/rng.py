"""Random numbers in streams that do not depend on how many threads draw them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from samba.errors import ArgumentError
from samba.support.given import flag_of, whole_of

BLOCK = 1 << 18
"""Numbers that are drawn from one generator: a megabyte, so that starting one costs nothing."""

_ROUNDINGS = ("nearest_even", "truncation")

Draw = Callable[[np.random.Generator, np.ndarray], None]
"""Fills an array from a generator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomSettings:
    """Settings of random numbers.

    Args:
        seed: Same seed, same values.
        threads: Threads to draw with; the values do not depend on it.
        inverse_transform_sampling: Whether normal numbers are made from uniform ones by the
            inverse of the normal distribution function, instead of by the ziggurat method.
        fp32_to_bf16_rounding: ``"nearest_even"`` or ``"truncation"``.

    Raises:
        ArgumentError: A value is out of range.
    """

    seed: int
    threads: int = 8
    inverse_transform_sampling: bool = False
    fp32_to_bf16_rounding: str = "nearest_even"

    def __post_init__(self) -> None:
        whole_of(self.seed, "enable_lazy_param(seed=...)", wanted="a whole number or None")
        whole_of(self.threads, "enable_lazy_param(init_threads=...)", least=1)
        inverse = "enable_lazy_param(inverse_transform_sampling=...)"
        flag_of(self.inverse_transform_sampling, inverse)
        if self.fp32_to_bf16_rounding not in _ROUNDINGS:
            raise ArgumentError(
                where="enable_lazy_param(fp32_to_bf16_rounding=...)",
                found=repr(self.fp32_to_bf16_rounding),
                wanted=" or ".join(map(repr, _ROUNDINGS)),
            )


def fresh_seed() -> int:
    """A seed drawn from torch's generator, so that ``set_seed`` decides it."""
    return int(torch.randint(1 << 62, ()))


class MultithreadedRNG(torch.Generator):
    """A stream of random numbers: fast for large tensors, and a ``torch.Generator`` for the rest.

    Large draws are cut into blocks with a generator each, which threads fill in any order.

    Args:
        settings: Seed and ways of drawing.
        stream: Number of the stream; streams of one seed are independent.

    Example:
        >>> first = MultithreadedRNG(RandomSettings(seed=1, threads=1)).normal(0, 1, (3, 2))
        >>> again = MultithreadedRNG(RandomSettings(seed=1, threads=5)).normal(0, 1, (3, 2))
        >>> torch.equal(first, again)
        True
    """

    def __new__(cls, settings: RandomSettings, stream: Iterable[int] = ()) -> MultithreadedRNG:
        return super().__new__(cls)

    def __init__(self, settings: RandomSettings, stream: Iterable[int] = ()) -> None:
        self.settings = settings
        self._key = (settings.seed & (1 << 64) - 1, *stream)
        self._draws = 0
        self.manual_seed(int(np.random.SeedSequence(self._key).generate_state(1, np.uint64)[0]))

    def normal(
        self,
        mean: float = 0.0,
        std: float = 1.0,
        shape: Iterable[int] = (),
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """Draws normal numbers.

        Args:
            mean, std: Of the distribution.
            shape: Shape of the result.
            dtype: Its floating type, torch's default if None.

        Returns:
            A new tensor.
        """
        return self.normal_(torch.empty(tuple(shape), dtype=dtype), mean, std)

    def uniform(
        self,
        low: float = 0.0,
        high: float = 1.0,
        shape: Iterable[int] = (),
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """Draws uniform numbers in [low, high).

        Args:
            low, high: Bounds.
            shape: Shape of the result.
            dtype: Its floating type, torch's default if None.

        Returns:
            A new tensor.
        """
        return self.uniform_(torch.empty(tuple(shape), dtype=dtype), low, high)

    def normal_(self, tensor: torch.Tensor, mean: float = 0.0, std: float = 1.0) -> torch.Tensor:
        """Fills a floating tensor with normal numbers and returns it."""
        standard = _by_inverse if self.settings.inverse_transform_sampling else _by_ziggurat

        def draw(generator: np.random.Generator, values: np.ndarray) -> None:
            standard(generator, values)
            values *= std
            values += mean

        return self._fill(tensor, draw)

    def uniform_(self, tensor: torch.Tensor, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
        """Fills a floating tensor with uniform numbers in [low, high) and returns it."""

        def draw(generator: np.random.Generator, values: np.ndarray) -> None:
            generator.random(out=values, dtype=values.dtype.type)
            values *= high - low
            values += low

        return self._fill(tensor, draw)

    def _fill(self, tensor: torch.Tensor, draw: Draw) -> torch.Tensor:
        key = (*self._key, self._draws)
        self._draws += 1
        ready = tensor.is_contiguous()
        flat = (tensor.detach() if ready else torch.empty_like(tensor).contiguous()).view(-1)
        direct = flat.dtype in (torch.float32, torch.float64)

        def block(number: int) -> None:
            part = flat[number * BLOCK : (number + 1) * BLOCK]
            generator = np.random.Generator(
                np.random.Philox(seed=np.random.SeedSequence((*key, number)))
            )
            if direct:
                draw(generator, part.numpy())
                return
            values = np.empty(len(part), np.float32)
            draw(generator, values)
            drawn = torch.from_numpy(values)
            if part.dtype == torch.bfloat16:
                drawn = to_bfloat16(drawn, self.settings.fp32_to_bf16_rounding)
            part.copy_(drawn)

        count = -(-flat.numel() // BLOCK)
        threads = min(self.settings.threads, count)
        if threads > 1:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(block, range(count)))
        else:
            for number in range(count):
                block(number)
        if not ready:
            with torch.no_grad():
                tensor.copy_(flat.view(tensor.shape))
        return tensor


def _by_ziggurat(generator: np.random.Generator, values: np.ndarray) -> None:
    generator.standard_normal(out=values, dtype=values.dtype.type)


def _by_inverse(generator: np.random.Generator, values: np.ndarray) -> None:
    uniform = torch.from_numpy(generator.random(len(values)))
    # Zero would become minus infinity; half of the smallest step keeps the tail symmetric.
    values[:] = torch.special.ndtri(uniform.clamp_min_(2.0**-54)).numpy()


def to_bfloat16(values: torch.Tensor, rounding: str) -> torch.Tensor:
    """Casts float32 to bfloat16.

    Args:
        values: A float32 tensor.
        rounding: ``"nearest_even"``, or ``"truncation"``: the lower 16 bits are cut off.

    Returns:
        A new tensor.

    Example:
        >>> to_bfloat16(torch.tensor([1.0 + 2**-8 + 2**-9]), "truncation").item()
        1.0
    """
    if rounding == "truncation":
        return (values.contiguous().view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)
    return values.bfloat16()
