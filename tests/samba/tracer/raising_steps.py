"""Steps of a model, each of one line: of a weight, whole numbers and an input of three elements."""

from __future__ import annotations

import torch
from torch import Tensor


def by_zero(w: Tensor, i: Tensor, x: Tensor) -> Tensor:
    return w.sum() * (i // 0)


def rest_by_zero(w: Tensor, i: Tensor, x: Tensor) -> Tensor:
    return w.sum() * (i % 0)


def rest_of_a_number(w: Tensor, i: Tensor, x: Tensor) -> Tensor:
    return w.sum() * torch.remainder(7, torch.tensor([1, 0, 2]))


def cut_by_zero(w: Tensor, i: Tensor, x: Tensor) -> Tensor:
    return w.sum() * torch.div(i, 0, rounding_mode="trunc")


def fmod_by_zero(w: Tensor, i: Tensor, x: Tensor) -> Tensor:
    return w.sum() * torch.fmod(i, 0)


def by_a_constant(w: Tensor, i: Tensor, x: Tensor) -> Tensor:
    return w.sum() * (i // torch.tensor([1, 0, 2]))


def negative_power(w: Tensor, i: Tensor, x: Tensor) -> Tensor:
    return w.sum() * i**-1


DIVISIONS = (by_zero, rest_by_zero, rest_of_a_number, cut_by_zero, fmod_by_zero, by_a_constant)
DIVISIONS = (*DIVISIONS, negative_power)


def largest(w: Tensor, i: Tensor, x: Tensor) -> Tensor:
    return w[:0].max()


def smallest(w: Tensor, i: Tensor, x: Tensor) -> Tensor:
    return w.sum() * x[:0].min()


def place_of_largest(w: Tensor, i: Tensor, x: Tensor) -> Tensor:
    return w.sum() * x[:0].argmax()


def largest_along(w: Tensor, i: Tensor, x: Tensor) -> Tensor:
    return w[:0].reshape(2, 0).amax(1)


def both_ends(w: Tensor, i: Tensor, x: Tensor) -> Tensor:
    return w[:0].aminmax().max


def most_frequent(w: Tensor, i: Tensor, x: Tensor) -> Tensor:
    return w.sum() * x[:0].mode().values


def largest_norm(w: Tensor, i: Tensor, x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(w[:0], float("inf"))


EMPTY = (largest, smallest, place_of_largest, largest_along, both_ends, most_frequent, largest_norm)


def floor_of_quotient(w: Tensor, i: Tensor, x: Tensor) -> Tensor:
    return (w // x).sum()


def floor_by_number(w: Tensor, i: Tensor, x: Tensor) -> Tensor:
    return w.sum() + (w // 2.0).sum()


def step_function(w: Tensor, i: Tensor, x: Tensor) -> Tensor:
    return (torch.heaviside(x, w) * w).sum()


def order_of_gamma(w: Tensor, i: Tensor, x: Tensor) -> Tensor:
    return torch.igamma(w, x).sum()


def rest_by_weight(w: Tensor, i: Tensor, x: Tensor) -> Tensor:
    return torch.remainder(7.0, w).sum()


def order_of_zeta(w: Tensor, i: Tensor, x: Tensor) -> Tensor:
    return torch.special.zeta(w, x).sum()


NO_GRADIENT = (floor_of_quotient, floor_by_number, step_function, order_of_gamma, rest_by_weight)
NO_GRADIENT = (*NO_GRADIENT, order_of_zeta)


def detached(w: Tensor, i: Tensor, x: Tensor) -> Tensor:
    return (w * (w.detach() // x)).sum()


def detached_behind(w: Tensor, i: Tensor, x: Tensor) -> Tensor:
    return (w * (w // x).detach()).sum()


def of_inputs(w: Tensor, i: Tensor, x: Tensor) -> Tensor:
    return (w * (x // 2.0) + i // 2).sum()


def argument_of_gamma(w: Tensor, i: Tensor, x: Tensor) -> Tensor:
    return torch.igamma(x, w.abs()).sum()


def by_rounding(w: Tensor, i: Tensor, x: Tensor) -> Tensor:
    return torch.div(w, x, rounding_mode="floor").sum()


WITH_GRADIENT = (detached, detached_behind, of_inputs, argument_of_gamma, by_rounding)
