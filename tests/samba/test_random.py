"""Creation functions: torch's values under a name."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import samba
from samba.errors import ArgumentError
from tests.api.covers import covers

CALLS = {
    "arange": (2, 9, 3),
    "bernoulli": (torch.full((4,), 0.5),),
    "eye": (3,),
    "full": ((2, 3), 7),
    "full_like": (torch.ones(2), 3),
    "linspace": (0, 1, 5),
    "multinomial": (torch.ones(5), 3),
    "normal": (0.0, 2.0, (3, 2)),
    "ones": (2, 3),
    "ones_like": (torch.zeros(3, dtype=torch.int16),),
    "rand": ([2, 1],),
    "rand_like": (torch.ones(2, 2),),
    "randint": (10, (4,)),
    "randint_like": (torch.ones(4), 9),
    "randn": (2, 3),
    "randn_like": (torch.ones(3),),
    "randperm": (6,),
    "tensor": ([[1, 2], [3, 4]],),
    "zeros": (2, 3),
    "zeros_like": (torch.ones(2),),
}


@pytest.mark.parametrize(("function", "arguments"), CALLS.items())
def test_values_are_torchs(function, arguments):
    torch.manual_seed(3)
    expected = getattr(torch, function)(*arguments)
    torch.manual_seed(3)
    made = getattr(samba, function)(*arguments, name="t", region_name="r")
    assert type(made) is samba.SambaTensor
    assert (made.sn_name, made.sn_region_name) == ("t", "r")
    assert made.dtype == expected.dtype
    assert torch.equal(made.torch(), expected)
    assert getattr(samba, function) is getattr(samba.random, function)
    assert function in getattr(samba, function).__doc__


def test_every_function_is_tested():
    assert {*CALLS, "empty", "empty_like", "set_seed"} == set(samba.random.__all__)
    assert samba.empty(2, 3, name="t").shape == (2, 3)
    assert samba.empty_like(torch.ones(2), dtype=torch.int8).dtype == torch.int8


def test_labels_and_keywords():
    image = samba.randn(4, 3, name="image", batch_dim=0, named_dims=("B", "F"), requires_grad=True)
    assert (image.batch_dim, image.named_dims) == (0, ("B", "F"))
    assert image.requires_grad
    assert image.is_leaf
    half = samba.rand([2, 1], dtype=torch.bfloat16, name="h", sized_dims=[None, "w"])
    assert half.sized_dims == (None, "w")
    assert half.dtype == torch.bfloat16


@covers("samba.randint")
def test_both_forms_of_randint():
    label = samba.randint(10, (100,), name="label", batch_dim=0)
    assert label.dtype == torch.int64
    assert 0 <= label.min() <= label.max() < 10
    ids = samba.randint(5, 8, (100,), dtype=torch.int16)
    assert ids.dtype == torch.int16
    assert ids.min() == 5
    assert ids.max() == 7


def test_likes_take_samba_tensors_and_their_own_name():
    noise = samba.randn_like(samba.ones(2, name="image").bfloat16(), name="noise")
    assert (noise.sn_name, noise.dtype) == ("noise", torch.bfloat16)
    assert samba.randn_like(samba.ones(2, name="image")).sn_name == ""


@pytest.mark.parametrize("seed", [samba.set_seed, samba.utils.set_seed])
def test_set_seed_seeds_all_three(seed):
    draws = []
    for _ in range(2):
        seed(256)
        draws.append((samba.randn(3).tolist(), np.random.rand(), random.random()))
    assert draws[0] == draws[1]


@pytest.mark.parametrize("seed", ["256", 0.5, None, -1, 2**32, True])
def test_what_is_no_seed_is_refused_and_seeds_nothing(seed):
    """Such as the text of an environment variable, which Python's generator would take."""
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    with pytest.raises(ArgumentError, match=r"set_seed\(seed\): found .* from 0 to 4294967295"):
        samba.set_seed(seed)
    now = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert now == states
