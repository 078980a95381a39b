"""SambaParameter: a SambaTensor that torch modules and optimizers take as a parameter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from pef_schema.printable import one_line
from samba.sambatensor import Materializer, SambaTensor

__all__ = ["SambaParameter"]


class SambaParameter(SambaTensor, nn.Parameter):  # pyright: ignore[reportIncompatibleVariableOverride, reportIncompatibleMethodOverride]  # see the mixins
    """A parameter with a name on the device.

    Args:
        torch_tensor: Source whose memory it shares. None makes an empty parameter of ``shape``
            and ``dtype``.
        requires_grad: Whether it is trained.
        shape: Sizes of an empty parameter.
        dtype: Element type of an empty parameter.
        name: Name on the device.
        batch_dim: Recorded only.
        named_dims: Recorded only.
        sized_dims: Recorded only.
        materializer: Makes the values of an empty parameter; see ``SambaTensor``.
        is_complex: Recorded only.
        region_name: Name of its place in device memory.

    Raises:
        ConversionError: ``torch_tensor`` is not a tensor.
        ArgumentError: ``shape`` or ``dtype`` come with ``torch_tensor``, or none of them is given.

    Example:
        >>> import torch
        >>> weight = SambaParameter(shape=(3,), materializer=lambda p: torch.ones(p.shape))
        >>> weight.materialize_()
        >>> weight.data
        tensor([1., 1., 1.])
    """

    def __new__(
        cls,
        torch_tensor: torch.Tensor | None = None,
        requires_grad: bool = True,
        *,
        shape: Iterable[int] | None = None,
        dtype: torch.dtype | None = None,
        name: str | None = None,
        batch_dim: int | None = None,
        named_dims: Iterable[str | None] | None = None,
        sized_dims: Iterable[str | None] | None = None,
        materializer: Materializer | None = None,
        is_complex: bool | None = None,
        region_name: str | None = None,
    ) -> SambaParameter:
        parameter = SambaTensor(
            torch_tensor if torch_tensor is None else torch_tensor.detach(),
            shape,
            dtype,
            name,
            batch_dim,
            named_dims,
            sized_dims,
            materializer,
            is_complex,
            region_name,
        )
        vars(parameter).pop("_underlying", None)  # a parameter is a tensor of its own
        parameter.__class__ = cls
        parameter.requires_grad_(requires_grad)
        return parameter  # pyright: ignore[reportReturnType]  # its class was assigned above

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        kind = f"samba.{type(self).__name__} {one_line(self._sn_name)}".rstrip()
        trained = "" if self.requires_grad else ", requires_grad=False"
        return f"{kind}{trained} containing:\n{self._values_text()}"
