"""Weight normalisation as two parameters of a linear layer."""

from __future__ import annotations

import torch
from torch import nn

from samba.errors import ArgumentError


class WeightNormLinear(nn.Linear):
    """A linear layer whose weight is a magnitude times a direction, one magnitude a row.

    Salimans and Kingma, "Weight Normalization", 2016: ``w = g * v / ||v||``.
    """

    weight_magnitude: nn.Parameter
    weight_direction: nn.Parameter

    @property
    def weight(self) -> torch.Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]  # computed here, stored in nn.Linear
        """The weight, of shape [out, in], computed from the two parameters."""
        norm = self.weight_direction.norm(2, dim=1, keepdim=True)
        return self.weight_direction * (self.weight_magnitude / norm)


def weight_norm_(layer: nn.Linear) -> nn.Linear:
    """Splits the weight of a linear layer into ``weight_magnitude`` and ``weight_direction``.

    It works in place and changes no result of the layer. Call it before
    ``samba.from_torch_model_``.

    Args:
        layer: The layer.

    Returns:
        The layer.

    Raises:
        ArgumentError: ``layer`` is not a ``torch.nn.Linear``, or is of a subclass.
    """
    if type(layer) is not nn.Linear:
        raise ArgumentError(
            where="weight_norm_(layer)",
            found=type(layer).__name__,
            wanted="a torch.nn.Linear, and not a subclass",
        )
    weight = layer.weight
    del layer.weight
    with torch.no_grad():
        magnitude = weight.norm(2, dim=1, keepdim=True)
    layer.register_parameter("weight_magnitude", nn.Parameter(magnitude, weight.requires_grad))
    layer.register_parameter(
        "weight_direction", nn.Parameter(weight.detach(), weight.requires_grad)
    )
    layer.__class__ = WeightNormLinear
    return layer
