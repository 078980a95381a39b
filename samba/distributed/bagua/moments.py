"""First moments of Adam, as qadam asks for them."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from samba.tensor.bagua_handle import Closures


class Moments(ABC):
    """The first moments of a model's parameters, and how far the warm-up is."""

    @property
    @abstractmethod
    def warming(self) -> bool:
        """Whether the next step is one of the warm-up."""

    @abstractmethod
    def closures(self, name: str) -> Closures:
        """Closures of a parameter's first moment.

        Args:
            name: Name of the parameter.
        """

    @abstractmethod
    def update(self, parameter: torch.Tensor) -> None:
        """Move a parameter's first moment towards this replica's gradient, without weight decay.

        Args:
            parameter: The parameter.
        """
