"""Convolutions against torch's rules for their shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from emulator.op_facts.table import signature_of
from pef_schema.program import Arg, Node, Ref, Value

_AXES: Mapping[str, int] = {
    **{f"aten.conv{n}d.{overload}": n for n in (1, 2, 3) for overload in ("default", "padding")},
    "aten.conv_transpose1d.default": 1,
    "aten.conv_transpose2d.input": 2,
    "aten.conv_transpose3d.input": 3,
    "aten.convolution.default": 0,
}
"""How many axes each slides over; 0 where its kernels say so."""

_MOST_AXES = 3
_LEAST: Mapping[str, int] = {"stride": 1, "dilation": 1, "padding": 0, "output_padding": 0}
"""Arguments with a number for each axis, or one for all, and the least that it may be."""


def convolution_problems(node: Node, values: Sequence[Value]) -> Iterator[str]:
    """What is wrong with the shapes and numbers of a convolution.

    Args:
        node: A node whose arguments are of the types that its op takes.
        values: Those of its graph.

    Returns:
        Reasons why it is none; nothing for other ops.
    """
    axes = _AXES.get(node.op)
    if axes is None:
        return
    args = _arguments(node)
    x, w, bias = (_shape(args.get(name), values) for name in ("input", "weight", "bias"))
    if x is None or w is None:
        return  # numbers in place of tensors
    n = axes or len(w) - 2
    if len(w) != n + 2 or not 1 <= n <= _MOST_AXES:
        yield f"weight has {len(w)} dimensions, expected {n + 2 if axes else '3 to 5'}"
        return
    if len(x) not in ((n + 1, n + 2) if axes else (n + 2,)):
        yield f"input has {len(x)} dimensions, expected {n + 2} with a weight of {n + 2}"
        return
    batch, channels, *size = x if len(x) == n + 2 else (1, *x)
    wrong = [*_number_problems(args, n)]
    yield from wrong
    if wrong:
        return
    groups = _one(args, "groups", 1)
    back = "transpose" in node.op or args.get("transposed") is True
    yield from _weight_problems(w, channels, groups, back=back)
    features = w[1] * groups if back else w[0]
    if bias is not None and bias != (features,):
        yield f"bias has shape {bias}, expected ({features},)"
    if 0 in size and batch and channels:
        yield f"input of shape {x} has size 0 along an axis; only batch or channels may have that"
    yield from _window_problems(args, w[2:], size, back=back)


def _arguments(node: Node) -> dict[str, Arg]:
    signature = signature_of(node.op)
    names = () if signature is None else (p.name for p in signature.parameters)
    return {**dict(zip(names, node.args, strict=False)), **dict(node.kwargs)}


def _shape(arg: Arg, values: Sequence[Value]) -> tuple[int, ...] | None:
    return values[arg.value].shape if isinstance(arg, Ref) else None


def _one(args: Mapping[str, Arg], name: str, default: int) -> int:
    arg = args.get(name, default)
    return arg if isinstance(arg, int) else default


def _each(args: Mapping[str, Arg], name: str, n: int, default: int) -> list[int]:
    """A number for each axis."""
    arg = args.get(name, default)
    items = [i for i in arg if isinstance(i, int)] if isinstance(arg, tuple) else [arg]
    numbers = [i for i in items if isinstance(i, int)] or [default]
    return numbers * n if len(numbers) == 1 else numbers


def _number_problems(args: Mapping[str, Arg], n: int) -> Iterator[str]:
    for name, least in _LEAST.items():
        arg = args.get(name)
        if isinstance(arg, tuple) and len(arg) not in (1, n):
            yield f"{name} has {len(arg)} numbers, expected {'1' if n == 1 else f'1 or {n}'}"
        elif min(_each(args, name, n, least)) < least:
            yield f"{name} {arg}, expected {least} or more"
    if _one(args, "groups", 1) < 1:
        yield f"groups {args.get('groups')}, expected 1 or more"
    if isinstance(args.get("padding"), str) and args["padding"] not in ("same", "valid"):
        yield f"padding {args['padding']!r:.80}, expected numbers, 'same' or 'valid'"
    elif args.get("padding") == "same" and max(_each(args, "stride", n, 1)) > 1:
        yield "padding 'same' with a stride, which torch refuses"


def _weight_problems(
    w: tuple[int, ...], channels: int, groups: int, *, back: bool
) -> Iterator[str]:
    if min(w[2:]) < 1:
        yield f"weight of shape {w} has no taps"
    if w[0] < groups or w[0] % groups:
        yield f"weight of shape {w} cannot be divided into {groups} groups"
    count = w[0] if back else w[1] * groups
    if channels != count:
        yield (
            f"input has {channels} channels, expected {count} with a weight of shape {w} in "
            f"{groups} groups"
        )
    if back and not w[1]:
        yield f"weight of shape {w} has no features"


def _window_problems(
    args: Mapping[str, Arg], kernel: Sequence[int], size: Sequence[int], *, back: bool
) -> Iterator[str]:
    n = len(kernel)
    stride, dilation = (_each(args, name, n, 1) for name in ("stride", "dilation"))
    if back:
        more = _each(args, "output_padding", n, 0)
        if any(o >= max(s, d) for o, s, d in zip(more, stride, dilation, strict=True)):
            yield f"output_padding {args['output_padding']}, expected less than stride or dilation"
        return
    if args.get("padding") == "same":
        return
    padding = _each(args, "padding", n, 0)
    padded = tuple(s + 2 * p for s, p in zip(size, padding, strict=True))
    reach = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
    if any(r > p for r, p in zip(reach, padded, strict=True)):
        yield f"a window of {reach} is larger than the padded input, {padded}"
