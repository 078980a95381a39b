"""Switches that SambaFlow scripts set before they compile."""

from __future__ import annotations

__all__ = [
    "disable_sgd_stoc",
    "enable_addbias_grad_accum_stoc",
    "enable_conv_grad_accum_stoc",
    "stochastic_rounding",
    "use_mock_samba_runtime",
]

_stochastic: dict[str, bool] = {}


def use_mock_samba_runtime() -> bool:
    """Tells whether results are meaningless because no device computes them.

    Scripts relax their accuracy bounds then. The emulator computes every result, so it is False.
    """
    return False


def enable_conv_grad_accum_stoc() -> None:
    """Wishes for stochastic rounding where gradients of convolutions are summed."""
    _stochastic["conv_grad_accum"] = True


def enable_addbias_grad_accum_stoc() -> None:
    """Wishes for stochastic rounding where gradients of biases are summed."""
    _stochastic["addbias_grad_accum"] = True


def disable_sgd_stoc() -> None:
    """Wishes for no stochastic rounding in the SGD update; the emulator never rounds so there."""
    _stochastic["sgd"] = False


def stochastic_rounding() -> dict[str, bool]:
    """The wishes so far, by place."""
    return dict(_stochastic)
