"""ONNX models in the place of torch models, through the package onnx2torch."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from emulator.handler_errors import raise_error_of_handler
from pef_schema.errors import SambaError
from samba.errors import ArgumentError, MissingPackage

_CONVERTER = "onnx2torch"
_MOST = 32
"""Models that are kept; a script may make ever new ones."""


class OnnxUnsupported(SambaError, RuntimeError):
    """An ONNX model cannot become a torch model.

    Args:
        name: Name of its graph.
        problem: What was found and what to do, as a sentence.
    """

    deviation = "onnx-model"

    def __init__(self, *, name: str, problem: str) -> None:
        self.name = name
        super().__init__(f"ONNX model {name or '(unnamed)'}: {problem}")


class OnnxModels:
    """Torch models in the place of ONNX models: the same for one that is asked for again."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, torch.nn.Module]] = []

    def module(self, model: Any, where: str) -> torch.nn.Module:
        """The torch model of what a script passed as its model.

        Args:
            model: A module, which is returned, or an ONNX ``ModelProto``.
            where: The function that it was passed to, for errors.

        Returns:
            The module; for a ``ModelProto`` one that computes the same, always the same object.

        Raises:
            ArgumentError: It is neither.
            MissingPackage: It is a ``ModelProto``, and the extra ``onnx`` is not installed.
            OnnxUnsupported: The model or the installed packages do not allow it.
        """
        if isinstance(model, torch.nn.Module):
            return model
        if not _is_model_proto(model):
            raise ArgumentError(
                where=f"{where}(model)",
                found=type(model).__name__,
                wanted="a torch.nn.Module or an ONNX ModelProto",
            )
        for proto, module in self._made:
            if proto is model:
                return module
        converted = _convert(model)
        self._made = [*self._made[1 - _MOST :], (model, converted)]
        return converted


def _is_model_proto(model: Any) -> bool:
    """Whether it is one, without importing onnx: a script that has one has imported it."""
    return any(
        base.__name__ == "ModelProto" and base.__module__.split(".")[0] == "onnx"
        for base in type(model).__mro__
    )


def _convert(proto: Any) -> torch.nn.Module:
    name = str(proto.graph.name)
    try:
        converter = importlib.import_module(_CONVERTER)
    except ModuleNotFoundError:
        raise MissingPackage(what="an ONNX model", package=_CONVERTER, extra="onnx") from None
    except Exception as error:  # torchvision raises what its own parts do
        raise_error_of_handler(error)
        raise OnnxUnsupported(
            name=name,
            problem=f"{_CONVERTER} cannot be imported ({type(error).__name__}: {error}). It needs "
            "a torchvision of the same build as torch, for the CPU or for one version of CUDA: "
            "install both from one index.",
        ) from error
    try:
        return converter.convert(proto)
    except Exception as error:
        raise_error_of_handler(error)
        raise OnnxUnsupported(
            name=name,
            problem=f"{_CONVERTER} cannot convert it ({type(error).__name__}: {error}). Export it "
            "with another opset, or write the model in torch.",
        ) from error
