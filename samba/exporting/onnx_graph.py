"""Inference graphs as ONNX, by torch's own exporter: the graph is run as a torch module."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import numpy as np
import torch

from emulator.dtypes import TO_NUMPY
from emulator.handler_errors import raise_error_of_handler
from emulator.op_facts.names import CASTS, checked_branches
from pef_schema import Graph, Program
from pef_schema.errors import SambaError, quoted
from pef_schema.printable import some_of
from pef_schema.program import Role
from pef_schema.program_facts import has_complex
from samba.errors import MissingPackage
from samba.tensor.views import view_as_torch
from samba.tracer.reference import run_node
from samba.tracer.traced import FROM_DTYPE
from samba.utils.checkpoint import read_checkpoint

_LARGEST = 2**31 - 1
"""Bytes that one ONNX file can have: its format counts them so."""


class NoOnnx(SambaError):
    """A graph has no form in ONNX.

    Args:
        program: The program.
        graph: The graph.
        problem: What was found and what to do, as a sentence.
    """

    def __init__(self, *, program: str, graph: str, problem: str) -> None:
        self.program, self.graph, self.problem = program, graph, problem
        super().__init__(f"graph {quoted(graph)} of {quoted(program)}: {problem}")


class _GraphModule(torch.nn.Module):
    """A graph as a module: its inputs are arguments, what it holds are buffers.

    Args:
        graph: The graph.
        tensors: Weights, buffers and constants by value.
    """

    def __init__(self, graph: Graph, tensors: Mapping[int, torch.Tensor]) -> None:
        super().__init__()
        self._graph = graph
        self._names = {value: f"value_{value}" for value in tensors}
        for value, name in self._names.items():
            self.register_buffer(name, tensors[value])

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        graph = self._graph
        env: dict[int, Any] = dict(zip(graph.inputs, inputs, strict=True))
        env |= {value: getattr(self, name) for value, name in self._names.items()}
        for node in graph.nodes:
            for value, result in zip(node.outputs, run_node(node, env, graph), strict=False):
                if value >= 0:
                    env[value] = result
        return tuple(env[output.value] for output in graph.outputs)


def load_weights(checkpoint: str | None) -> Mapping[str, torch.Tensor]:
    """Load the weights and buffers of a checkpoint.

    Args:
        checkpoint: A file or folder, as ``load_sharded_checkpoint`` reads it; nothing if None.

    Returns:
        Its tensors by name.

    Raises:
        BadCheckpoint: If there is none, or it is damaged.
        MissingPackage: If it holds safetensors, and that package is not installed.
    """
    return {} if checkpoint is None else read_checkpoint(checkpoint)


def onnx_bytes(program: Program, graph: int, weights: Mapping[str, torch.Tensor]) -> bytes:
    """Write a graph for inference as an ONNX model, which onnx's checker accepts.

    Args:
        program: The program.
        graph: Index of the graph.
        weights: Weights and buffers by region name, or by their names in the model.

    Returns:
        The file.

    Raises:
        NoOnnx: If the program trains, draws random numbers, holds complex ones or rounds to
            bfloat16; if weights are
            missing or of another form; or if torch has no ONNX for an operation.
        MissingPackage: If the extra ``export`` is not installed.
    """
    entry = program.graphs[graph]
    if not program.inference:
        raise _problem(
            program,
            entry,
            "the program trains, and ONNX has no form for that. Compile the model with inference="
            "True (--inference), in eval() mode, and export that PEF.",
        )
    if has_complex(program):
        raise _problem(
            program,
            entry,
            "it computes with complex numbers, which ONNX's operations do not take. Export it as "
            "StableHLO, or write its parts as real tensors.",
        )
    drawn = sorted({node.op for node in entry.nodes if "seed" in dict(node.kwargs)})
    if drawn:
        raise _problem(
            program,
            entry,
            f"it draws random numbers ({some_of(drawn, 8)}), which would differ elsewhere. Compile "
            "the model in eval() mode.",
        )
    if any(node.op in CASTS for node in entry.nodes):
        raise _problem(
            program,
            entry,
            "it rounds to bfloat16 as the hardware does, for which ONNX has no operation. Compile "
            "it without --graphamp-preset and --bf16-cast.",
        )
    module = _GraphModule(entry, _outside_tensors(program, entry, weights))
    inputs = tuple(
        torch.zeros(entry.values[v].shape, dtype=FROM_DTYPE[entry.values[v].dtype])
        for v in entry.inputs
    )
    data = _exported(program, entry, module, inputs)
    _check(program, entry, data)
    return data


def _outside_tensors(
    program: Program, graph: Graph, weights: Mapping[str, torch.Tensor]
) -> dict[int, torch.Tensor]:
    """Tensors of the values that are neither computed nor given; all problems at once."""
    known = {v for node in graph.nodes for v in node.outputs} | set(graph.inputs)
    short = {key.replace(".", "__"): tensor for key, tensor in weights.items()}
    tensors: dict[int, torch.Tensor] = {}
    checks = checked_branches(program)
    missing: list[str] = []
    other: list[str] = []
    for index, value in enumerate(graph.values):
        if index in known or value.region < 0:
            continue
        region = program.regions[value.region]
        if region.segment >= 0:
            data = np.frombuffer(program.segments[region.segment], TO_NUMPY[region.dtype])
            tensors[index] = view_as_torch(data.reshape(region.shape).copy())
            continue
        if value.region in checks:
            tensors[index] = torch.zeros((), dtype=torch.bool)
            continue
        if region.role not in (Role.WEIGHT, Role.BUFFER):
            continue
        tensor = short.get(region.name)
        if tensor is None:  # a state_dict has no name of the model itself
            tensor = short.get(region.name.partition("__")[2])
        if tensor is None:
            missing.append(region.name)
        elif tuple(tensor.shape) != region.shape or tensor.dtype != FROM_DTYPE[region.dtype]:
            other.append(
                f"{region.name} is {tensor.dtype} {list(tensor.shape)}, expected "
                f"{FROM_DTYPE[region.dtype]} {list(region.shape)}"
            )
        else:
            tensors[index] = tensor.detach()
    if missing:
        advice = (
            "A PEF holds no weights: pass --weights CHECKPOINT, as samba.utils.save_checkpoint or "
            "torch.save(model.state_dict(), …) writes it."
        )
        raise _problem(program, graph, f"weights are missing: {some_of(missing, 8)}. {advice}")
    if other:
        raise _problem(program, graph, f"weights do not match the PEF: {some_of(other, 8)}.")
    return tensors


def _exported(
    program: Program, graph: Graph, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]
) -> bytes:
    for package in ("onnx", "onnxscript"):
        try:
            importlib.import_module(package)
        except ModuleNotFoundError:
            raise MissingPackage(what="an ONNX file", package=package, extra="export") from None
    names: Any = {
        "input_names": [graph.values[v].name for v in graph.inputs],
        "output_names": [output.name for output in graph.outputs],
    }
    log = logging.getLogger("torch.onnx")
    level = log.level
    try:
        log.setLevel(logging.ERROR)
        with warnings.catch_warnings(), redirect_stdout(StringIO()), torch.no_grad():
            warnings.simplefilter("ignore")
            model: Any = torch.onnx.export(module, inputs, dynamo=True, verbose=False, **names)
    except Exception as error:
        raise_error_of_handler(error)
        raise _problem(
            program, graph, f"torch's ONNX exporter refuses it ({_first_line(error)})."
        ) from error
    finally:
        log.setLevel(level)
    proto = model.model_proto
    if proto.ByteSize() > _LARGEST:
        raise _problem(
            program,
            graph,
            f"it needs {proto.ByteSize():,} bytes; an ONNX file has at most {_LARGEST:,}.",
        )
    return proto.SerializeToString(deterministic=True)


def _check(program: Program, graph: Graph, data: bytes) -> None:
    import onnx  # noqa: PLC0415  # of the extra `export`

    try:
        onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
    except Exception as error:
        raise_error_of_handler(error)
        raise _problem(
            program, graph, f"onnx's checker refuses what torch wrote ({_first_line(error)})."
        ) from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}".rstrip(".")


def _problem(program: Program, graph: Graph, problem: str) -> NoOnnx:
    return NoOnnx(program=program.name, graph=graph.name, problem=problem)
