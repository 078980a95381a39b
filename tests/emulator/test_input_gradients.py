"""Input gradients that XLA's own code may not be asked for: it would end the process."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import jax
import numpy as np
import pytest
import torch

from emulator.kernels.convolutions import input_gradient
from emulator.kernels.rules import PLAIN, chosen_by
from emulator.kernels.windows import Window

_CASES = (
    # images, channels, features, size, kernel, stride, padding
    (6, 1, 6, (6, 2), (2, 3), (2, 2), (1, 2)),
    (6, 20, 20, (1, 4), (2, 2), (2, 2), (1, 1)),
    (20, 2, 2, (4, 3), (2, 3), (2, 3), (1, 2)),
    (2, 33, 5, (4, 1), (2, 3), (2, 3), (1, 1)),
    (1, 2, 2, (6, 4, 6), (2, 2, 3), (2, 3, 2), (1, 1, 1)),
)


@pytest.mark.parametrize("case", _CASES)
@pytest.mark.parametrize("plain", [True, False])
def test_one_axis_shorter_than_the_kernel(case: tuple[Any, ...], plain: bool) -> None:
    """Of the form that drawn convolutions ended the process with; by both rules."""
    images, channels, features, size, kernel, stride, padding = case
    rng = np.random.default_rng(0)
    x = torch.zeros(images, channels, *size, requires_grad=True)
    w = torch.from_numpy(rng.standard_normal((features, channels, *kernel), np.float32))
    torch_conv = (torch.conv1d, torch.conv2d, torch.conv3d)[len(size) - 1]
    y = torch_conv(x, w, None, stride, padding)
    g = torch.from_numpy(rng.standard_normal(y.shape, np.float32))
    (wanted,) = torch.autograd.grad(y, x, g)
    window = Window(
        kernel=kernel, stride=stride, dilation=(1,) * len(size), low=padding, high=padding,
        out=tuple(y.shape[2:]),
    )  # fmt: skip
    with chosen_by(PLAIN) if plain else nullcontext():
        run = jax.jit(lambda g, w: input_gradient(g, w, window, 1, size))
        got = run(g.numpy(), w.numpy())
    # At most `features` products of normal numbers are added for each tap that sees a place.
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=4e-7 * (4 + 4 * features))
