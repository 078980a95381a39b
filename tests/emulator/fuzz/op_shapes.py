"""Shapes that fit together, for ops whose arguments have a form: windows, matrices, sequences."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Form = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tensorlike:
    """A tensor that is wanted.

    Args:
        shape: Its shape.
        dtype: Its dtype; None for any.
        below: Bound of its entries, which are then ints from 0.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype | None = None
    below: int | None = None


def dims_of(rng: random.Random) -> tuple[int, ...]:
    """Some small shape, or one with a long dimension now and then."""
    rank = rng.choices((0, 1, 2, 3, 4, 5), (8, 18, 30, 22, 15, 7))[0]
    dims = [rng.choices((0, 1, 2, 3, 4, 5), (4, 15, 25, 26, 20, 10))[0] for _ in range(rank)]
    if dims and rng.random() < 0.04:
        dims[rng.randrange(rank)] = rng.choice((40, 300, 3000))
    return tuple(dims)


def _rank_in(op: str) -> int:
    found = re.search(r"([123])d", op)
    return int(found.group(1)) if found else 2


def _long(rng: random.Random, low: int = 2) -> int:
    if rng.random() < 0.04:
        return rng.choice((64, 500, 5000))
    return rng.randrange(low, 9)


def _extent(rng: random.Random, usual: tuple[int, ...]) -> int:
    """A size, step or padding that is odd now and then."""
    odd = (0, -1, 17, 300, 2000, 10**5, 10**9, 2**31 - 1, 2**31, 2**40, 2**63 - 1, -(2**63))
    return rng.choice(odd) if rng.random() < 0.08 else rng.choice(usual)


def _image(rng: random.Random, n: int, channels: int | None = None) -> tuple[int, ...]:
    c = rng.choice((1, 2, 4)) if channels is None else channels
    return (rng.choice((1, 2)), c, *(_long(rng) for _ in range(n)))


def _conv(op: str, rng: random.Random) -> Form:
    n = _rank_in(op) if "d" in op.split(".")[1][4:] else rng.choice((1, 2))
    groups = rng.choice((1, 1, 2))
    x = _image(rng, n, 2 * rng.choice((1, 2)))
    out = 2 * rng.choice((1, 2))
    kernel = tuple(rng.choice((1, 2, 3)) for _ in range(n))
    turned = "transpose" in op
    first, second = (x[1], out // groups) if turned else (out, x[1] // groups)
    return {
        "input": Tensorlike(x),
        "weight": Tensorlike((first, second, *kernel)),
        "bias": Tensorlike((out,)),
        "stride": [_extent(rng, (1, 2)) for _ in range(n)],
        "padding": [_extent(rng, (0, 1, 2)) for _ in range(n)],
        "dilation": [_extent(rng, (1, 1, 2)) for _ in range(n)],
        "output_padding": [_extent(rng, (0, 0, 1)) for _ in range(n)],
        "groups": _extent(rng, (groups,)),
        "transposed": turned,
    }


def _pool(op: str, rng: random.Random) -> Form:
    n = _rank_in(op)
    return {
        "self": Tensorlike(_image(rng, n)),
        "kernel_size": [_extent(rng, (1, 2, 2, 3)) for _ in range(n)],
        "stride": [_extent(rng, (1, 2, 3)) for _ in range(n)],
        "padding": [_extent(rng, (0, 0, 1)) for _ in range(n)],
        "dilation": [_extent(rng, (1, 1, 2)) for _ in range(n)],
        "output_size": [_extent(rng, (1, 2, 3)) for _ in range(n)],
        "random_samples": Tensorlike((rng.choice((1, 2)), rng.choice((1, 2, 4)), n)),
        "indices": Tensorlike(_image(rng, n), torch.int64, 9),
    }


def _upsample(op: str, rng: random.Random) -> Form:
    n = _rank_in(op)
    size = [_extent(rng, (1, 3, 5, 8)) for _ in range(n)]
    factors = [rng.choice((0.5, 1.5, 2.0, 1e-9, 1e9, 0.0, -1.0)) for _ in range(n)]
    form: Form = {"self": Tensorlike(_image(rng, n)), "input": Tensorlike(_image(rng, n))}
    if ".vec" in op and rng.random() < 0.4:
        return {**form, "scale_factors": factors}
    return {**form, "output_size": size}


def _im2col(op: str, rng: random.Random) -> Form:
    form = _pool("2d", rng)
    if "col2im" in op:
        form["output_size"] = [_extent(rng, (4, 5)), _extent(rng, (4, 5))]
        form["kernel_size"] = [2, 2]
        form["stride"], form["dilation"], form["padding"] = [1, 1], [1, 1], [0, 0]
        form["self"] = Tensorlike((1, 8, rng.choice((9, 12, 16))))
    return form


def _matrices(op: str, rng: random.Random) -> Form:
    n = rng.choice((0, 1, 2, 3, 4, 4, 12, 33))
    batch = rng.choice(((), (), (2,), (0,)))
    square = (*batch, n, n)
    wide = (*batch, n, rng.choice((n, 1, 2, 5)))
    free = any(k in op for k in ("svd", "qr", "pinv", "lstsq", "geqrf", "matrix_rank", "lu"))
    main = Tensorlike(wide if free else square)
    return {
        **dict.fromkeys(("self", "A", "input", "a"), main),
        **dict.fromkeys(("B", "other"), Tensorlike(wide)),
        **dict.fromkeys(("input2", "LU", "LU_data"), Tensorlike(square)),
        "tau": Tensorlike((*batch, n)),
        **dict.fromkeys(("pivots", "LU_pivots"), Tensorlike((*batch, n), torch.int32, max(n, 1))),
        "n": _extent(rng, (0, 1, 2, 3, 5)),
    }


def _norm(op: str, rng: random.Random) -> Form:
    c = rng.choice((2, 4))
    x = (rng.choice((1, 2)), c, rng.choice((2, 3)))
    shape = [x[-1]] if "layer" in op or "rms" in op else None
    width = x[-1] if shape else c
    return {
        **dict.fromkeys(("input", "self"), Tensorlike(x)),
        **dict.fromkeys(("weight", "bias", "running_mean", "running_var"), Tensorlike((width,))),
        "normalized_shape": shape,
        "num_groups": 2,
        "group": 2,
        "N": x[0],
        "C": c,
        "HxW": x[2],
    }


def _embedding(op: str, rng: random.Random) -> Form:
    del op
    rows = rng.choice((1, 5, 10))
    return {
        "weight": Tensorlike((rows, 3)),
        "indices": Tensorlike((6,), torch.int64, rows),
        "offsets": Tensorlike((2,), torch.int64, 6),
        "padding_idx": _extent(rng, (-1, 0)),
    }


def _recurrent(op: str, rng: random.Random) -> Form:
    gates = 4 if "lstm" in op else 3 if "gru" in op else 1
    features, hidden = 3, rng.choice((2, 3))
    layers, both = rng.choice((1, 1, 2)), rng.random() < 0.3
    ways = 2 if both else 1
    params: list[torch.Tensor] = []
    for layer in range(layers):
        for _ in range(ways):
            width = features if layer == 0 else hidden * ways
            params += [
                torch.randn(gates * hidden, width, generator=torch.Generator().manual_seed(1)),
                torch.randn(gates * hidden, hidden, generator=torch.Generator().manual_seed(2)),
                torch.ones(gates * hidden),
                torch.ones(gates * hidden),
            ]
    batch_first = rng.random() < 0.5
    state = torch.zeros(layers * ways, 2, hidden)
    x = torch.ones((2, rng.choice((1, 4)), features))
    return {
        "input": x if batch_first else x.transpose(0, 1).contiguous(),
        "params": params,
        "hx": [state, state] if "lstm" in op else state,
        "has_biases": True,
        "num_layers": layers,
        "dropout": 0.0,
        "train": False,
        "bidirectional": both,
        "batch_first": batch_first,
    }


def _attention(op: str, rng: random.Random) -> Form:
    del op
    b, h, q, k, d = (rng.choice((1, 2)), 2, rng.choice((1, 3)), rng.choice((1, 4)), 4)
    return {
        "query": Tensorlike((b, h, q, d)),
        "key": Tensorlike((b, h, k, d)),
        "value": Tensorlike((b, h, k, d)),
        "attn_mask": Tensorlike((q, k), rng.choice((torch.bool, torch.float32))),
    }


def _ctc(op: str, rng: random.Random) -> Form:
    del op
    times, batch, classes, longest = rng.choice((1, 6)), 2, 4, rng.choice((1, 3))
    return {
        "log_probs": Tensorlike((times, batch, classes)),
        "targets": Tensorlike((batch, longest), torch.int64, classes),
        "input_lengths": torch.tensor([times] * batch),
        "target_lengths": torch.tensor([longest] * batch),
        "longest": longest,
        "blank": _extent(rng, (0, 1)),
        "reduction": rng.choice(("none", "mean", "sum")),
    }


def _grid(op: str, rng: random.Random) -> Form:
    n = 3 if "3d" in op else 2
    x = _image(rng, n)
    return {
        "input": Tensorlike(x),
        "grid": Tensorlike((x[0], *(3,) * n, n), torch.float32),
        "theta": Tensorlike((2, n, n + 1)),
        "size": [2, 1, *(_extent(rng, (3, 4)) for _ in range(n))],
        "interpolation_mode": _extent(rng, (0, 1, 2)),
        "padding_mode": _extent(rng, (0, 1, 2)),
    }


def _products(op: str, rng: random.Random) -> Form:
    b, m, k, n = (rng.choice((0, 1, 2, 4)) for _ in range(4))
    if "baddbmm" in op or ".bmm" in op:
        return {
            "self": Tensorlike((b, m, k) if ".bmm" in op else (b, m, n)),
            "batch1": Tensorlike((b, m, k)),
            "batch2": Tensorlike((b, k, n)),
            "mat2": Tensorlike((b, k, n)),
        }
    left, right = Tensorlike((m, k)), Tensorlike((k, n))
    whole = Tensorlike((m, n)) if "addmm" in op else left
    return {
        "self": whole,
        "mat1": left,
        "mat2": right,
        "other": right,
        "input": left,
        "weight": Tensorlike((n, k)),
        "bias": Tensorlike((n,)),
    }


def _classes(op: str, rng: random.Random) -> Form:
    del op
    n, c = rng.choice((1, 4)), rng.choice((2, 5))
    return {
        "self": Tensorlike((n, c)),
        "target": Tensorlike((n,), torch.int64, c),
        "weight": Tensorlike((c,)),
        "reduction": rng.randrange(3),
        "ignore_index": _extent(rng, (-100, 0)),
    }


_FORMS: tuple[tuple[str, Callable[[str, random.Random], Form]], ...] = (
    (r"aten\.\w*conv\w*\.", _conv),
    (r"aten\.(\w*pool\w*)\.", _pool),
    (r"aten\._?upsample", _upsample),
    (r"aten\.(im2col|col2im)\.", _im2col),
    (
        r"aten\.(batch_norm|native_\w*norm|group_norm|layer_norm|rms_norm|instance_norm|_\w*batch_norm)",
        _norm,
    ),
    (r"(aten\._?|samba\.)embedding", _embedding),
    (r"aten\.(lstm|gru|rnn_\w+)\.", _recurrent),
    (r"aten\.\w*attention", _attention),
    (r"\.\w*ctc_loss", _ctc),
    (r"aten\.(grid_sampler|affine_grid)", _grid),
    (r"aten\.(mm|addmm|bmm|baddbmm|linear|addbmm|_addmm\w*)\.", _products),
    (r"aten\.(nll_loss|cross_entropy|multi\w*_margin_loss)", _classes),
    (
        r"aten\.(_?linalg_(?!vector|norm|cross|diag)|cholesky|lu_|_lu|inverse|pinverse|det|slogdet"
        r"|logdet|matrix_(exp|power)|triangular_solve|orgqr|ormqr|geqrf|qr|svd)",
        _matrices,
    ),
)


def structured(op: str, rng: random.Random) -> Mapping[str, Any]:
    """Values by argument name that fit together, for an op that has a form; else none.

    Args:
        op: Name in the op registry.
        rng: Where to draw from.

    Returns:
        Plain values, and a :class:`Tensorlike` for each tensor.
    """
    for pattern, form in _FORMS:
        if re.search(pattern, op):
            return {name: v for name, v in form(op, rng).items() if v is not None}
    return {}
