"""Broken files: tensors without elements and arguments that ask for impossible sizes."""

from __future__ import annotations

from typing import Any

from pef_schema import Ref
from tests.pef_schema.bad_parts import edited, gradient


def _asks(case: str, op: str, args: tuple[Any, ...], text: str, **kwargs: Any) -> None:
    """Add a case of an operation that is told to make something of an impossible size."""
    edited(
        case,
        f"node 0: {op} asks for {text}",
        "graphs.0.nodes.0",
        op=op,
        args=args,
        kwargs=tuple(kwargs.items()),
    )


_EMPTY = "bytes, at most 281474976710656 are allowed"
edited("empty_overflow", _EMPTY, "regions.0", shape=(2**48, 2**48, 0))
edited("empty_overflow_inside", _EMPTY, "regions.0", shape=(0, 2**40, 2**40))
edited("empty_value", f"value 4: {2**84} {_EMPTY}", "graphs.0.values.4", shape=(2**41, 2**41, 0))
edited(
    "empty_turns",
    "sizes before a 0 of 268435456, at most 4194304 are allowed",
    "regions.0",
    shape=(2**14, 2**14, 0),
)
gradient(
    "gradient_empty",
    f"gradient 0 value 2: {2**84}",
    "graphs.0.gradients.0.values.2",
    shape=(2**41, 2**41, 0),
)
_asks("size_full", "aten.full.default", ((2**48, 2**48, 0), 1.0), str(2**96))
_asks("size_zeros", "aten.zeros.default", ((2**30, 2**30),), str(2**60))
_asks("size_new_full", "aten.new_full.default", (Ref(0), (2**48, 2**48, 0), 1), str(2**96))
_asks("size_keyword", "aten.ones.default", (), str(2**96), size=(2**48, 2**48, 0))
_asks("size_expand", "aten.expand.default", (Ref(0), (2**40, 2**40, -1, -1)), str(2**80))
_asks("size_repeat", "aten.repeat.default", (Ref(0), (2**30, 2**30, 2)), str(2**61))
_asks("size_view", "aten.view.default", (Ref(0), (-1, 2**47, 2**47, 0)), str(2**94))
_asks("size_strided", "aten.as_strided.default", (Ref(0), (2**62,), (0,)), f"size {2**62}")
_asks("size_eye", "aten.eye.m", (2**30, 2**30), str(2**60))
_asks("size_turns", "aten.empty.memory_format", ((2**13, 2**12, 0),), "sizes before a 0 of")
_asks("size_rank", "aten.rand.default", ((1,) * 17,), "rank 17, at most 16")
_asks("size_randint", "aten.randint.low", (0, 9, (2**48, 2**48, 0)), str(2**96))
_asks("size_arange", "aten.arange.default", (2**62,), f"size {2**62}")
_asks("size_arange_start", "aten.arange.start", (-(2**62), 1), f"size {-(2**62)}")
_asks("size_arange_inf", "aten.arange.default", (float("inf"),), "size inf")
_asks("size_linspace", "aten.linspace.default", (0.0, 1.0, 2**50), f"size {2**50}")
_asks("size_one_hot", "aten.one_hot.default", (Ref(0), 2**63 - 1), f"size {2**63 - 1}")
_asks("size_pad", "aten.constant_pad_nd.default", (Ref(0), (2**62, 0)), f"size {2**62}")
_asks("size_interleave", "aten.repeat_interleave.self_int", (Ref(0), 2**60), f"size {2**60}")
_asks("size_window", "aten.hann_window.default", (2**60,), f"size {2**60}")
_asks("size_upsample", "aten.upsample_nearest2d.vec", (Ref(0), (2**31, 2**31), None), str(2**62))
