"""Tracing at run time: ``trace_graph`` and the gradients that seed the backward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from samba.compiler.optimizers import as_optimizers
from samba.errors import (
    ArgumentError,
    ConversionError,
    NotTraced,
    UnknownTensor,
    described,
    literal,
)
from samba.sambatensor import SambaTensor
from samba.session.process import session
from samba.session.settings import check_data_parallel_mode, check_mapping
from samba.support.deviations import tell
from samba.support.given import flag_of, mapping_of, names_of, path_of, refuse_unknown, text_of
from samba.tensor.device_memory import DeviceTensors, visible_memory


def trace_graph(
    model: torch.nn.Module | Any,
    inputs: Any,
    optim: Any = None,
    init_output_grads: bool = True,
    loss_indices: Sequence[Any] | None = None,
    pef: str = "",
    mapping: str = "section",
    data_parallel_mode: str = "normal",
    transfer_device: bool = True,
    *,
    distlearn_config: Any = None,
    dev_mode: bool = False,
    config_dict: Mapping[str, Any] | None = None,
    **unknown: Any,
) -> tuple[SambaTensor, ...]:
    """Load a compiled PEF and put the model on the device.

    The model is traced again and must give the graph that was compiled.

    Args:
        model: The model; an ONNX ``ModelProto`` needs the extra ``onnx``, and is the same module
            in all calls of a session.
        inputs: Inputs with the compiled names, shapes and dtypes.
        optim: The optimizers that were compiled, None for none.
        init_output_grads: Whether losses start with a gradient of ones; other outputs have none
            until :func:`init_output_grads` or ``sn_grad`` sets one. With False, losses have none
            either: a backward pass starts from what was set, and is refused if nothing was.
        loss_indices: The outputs that are losses, among those that were compiled as such; None for
            all of them.
        pef: Path of the PEF; the session's own if empty.
        mapping: ``"section"`` or ``"spatial"``; the PEF's own mapping holds, and the log says so
            if another one than the default is asked for.
        data_parallel_mode: The one that ``session.run`` will be given.
        transfer_device: Whether weights, buffers, inputs and optimizer state are
            transferred now.
        config_dict: Parsed command line as a dict; the last one parsed if None. With
            ``inference`` in it, a PEF for inference takes an optimizer and ignores it.
        distlearn_config: Anything but None or "" asks for replicas, if a launcher has started
            some and ``parse_app_args`` has not met them; what it says changes nothing.
        dev_mode: Accepted for older scripts.

    Returns:
        Handles of the outputs, also kept as ``model.output_tensors``.

    Raises:
        SambaError: If the PEF cannot be read or does not fit the model.
        DataParallelError: If replicas do not load the same.
    """
    where = "utils.trace_graph"
    refuse_unknown(where, trace_graph, unknown)
    transfer_device = flag_of(transfer_device, f"{where}(transfer_device=...)")
    init_output_grads = flag_of(init_output_grads, f"{where}(init_output_grads=...)")
    check_mapping(mapping, "utils.trace_graph(mapping=...)")
    check_data_parallel_mode(data_parallel_mode, "utils.trace_graph")
    outputs = session.load(
        model,
        inputs,
        optim,
        pef=path_of(pef, f"{where}(pef=...)"),
        loss_indices=loss_indices,
        transfer_device=transfer_device,
        init_output_grads=init_output_grads,
        config=config_dict,
        data_parallel_mode=data_parallel_mode,
        distlearn_config=distlearn_config,
    )
    compiled = session.need_loaded("load()").program.mapping
    if mapping != "section" and mapping != compiled:
        tell(
            "compiled-mapping",
            f"trace_graph(mapping={mapping!r}): {session.pef_path} was compiled with mapping "
            f"{compiled!r}, which is used; compile again to change it",
        )
    return outputs


def trace_multigraph(
    graph: torch.nn.Module,
    inputs: Any,
    optimizers: Any = None,
    init_output_grads: bool | None = None,
    mapping: str = "",
    trace_prefix: str | None = None,
) -> tuple[SambaTensor, ...]:
    """Trace a module that becomes one or several graphs of a PEF for inference.

    Call it once for each module, or for each set of input shapes of one module, when compiling
    and again when running. Set ``sn_region_name`` of its inputs and outputs to give them common
    memory, make a ``samba.graph.FwdGraph`` of them, and add that with
    ``samba.session.add_graph``.

    Args:
        graph: The module; traces of one module share its weights.
        inputs: What its ``forward`` takes: a tensor, a tuple or list, or a dict. They may be
            outputs of another trace.
        optimizers: Accepted; graphs of a PEF are forward passes, so a warning says that they do
            not train.
        init_output_grads: Accepted as well: graphs have no gradients.
        mapping: ``"section"`` or ``"spatial"``; that of the compile if empty.
        trace_prefix: Put before the names of operations and so of outputs; needed where a module
            is traced more than once.

    Returns:
        Handles of the outputs.

    Raises:
        SambaError: The module cannot be traced, has tied weights, or was traced with this prefix
            before.

    Example:
        >>> import samba
        >>> model = samba.from_torch_model_(torch.nn.Linear(4, 2))
        >>> x = samba.from_torch_tensor(torch.zeros(1, 4), name="x")
        >>> (y,) = trace_multigraph(model, x, trace_prefix="short")
        >>> y.sn_name
        'short__linear__linear__outputs__0'
        >>> samba.session.reset()
    """
    where = "utils.trace_multigraph"
    if trace_prefix is not None:
        text_of(trace_prefix, f"{where}(trace_prefix=...)")
    if init_output_grads is not None:
        flag_of(init_output_grads, f"{where}(init_output_grads=...)")
    as_optimizers(optimizers)
    for what, value in (("optimizers", optimizers), ("init_output_grads", init_output_grads)):
        if value:
            tell(
                "forward-graphs",
                f"trace_multigraph({what}=...) changes nothing: the graphs of a PEF are forward "
                "passes. A model that trains is compiled with session.compile",
            )
    return session.trace_part(graph, inputs, mapping=mapping or "", prefix=trace_prefix or "")


def init_output_grads(
    output_tensors: Sequence[Any],
    unspecified_tensor_grad: Sequence[str] = (),
    customized_tensors_dict: Mapping[str, torch.Tensor] | None = None,
    is_variable_batch_size: bool = False,
) -> None:
    """Set the gradients that the backward pass starts from.

    Each name may be that of the tensor or that of its gradient.

    Args:
        output_tensors: Output handles or names; those without a gradient in
            ``customized_tensors_dict`` start with ones.
        unspecified_tensor_grad: Further names that start with ones.
        customized_tensors_dict: Gradients by tensor name.
        is_variable_batch_size: Accepted; batch sizes are fixed, and a gradient of another one is
            refused.

    Raises:
        SambaError: If a tensor that is named has no gradient in the program, or a gradient does
            not fit it.
    """
    function = "utils.init_output_grads"
    flag_of(is_variable_batch_size, f"{function}(is_variable_batch_size=...)")
    if customized_tensors_dict is None:
        customized_tensors_dict = {}
    customized = f"{function}(customized_tensors_dict=...)"
    mapping_of(customized_tensors_dict, customized, "a dict of tensors by name")
    for name, gradient in customized_tensors_dict.items():
        if not isinstance(gradient, torch.Tensor):
            raise ConversionError(
                where=f"{customized}[{literal(name)}]", found=described(gradient), wanted="a tensor"
            )
    outputs = _named(output_tensors, f"{function}(output_tensors)")
    unspecified = names_of(unspecified_tensor_grad, f"{function}(unspecified_tensor_grad)")
    names_of(customized_tensors_dict, customized)
    memory = visible_memory()
    if memory is None:
        raise NotTraced(operation=f"{function}()", name="its outputs")
    custom = {_owner(memory, name): g for name, g in customized_tensors_dict.items()}
    listed = [_owner(memory, name) for name in outputs]
    further = [_owner(memory, name) for name in unspecified]
    gradients: dict[str, torch.Tensor] = {}
    for name in dict.fromkeys([*listed, *further, *custom]):
        if name not in custom and name not in further and not memory.has_grad(name):
            continue
        present = memory.read_grad(name)
        gradient = custom.get(name, torch.ones_like(present))
        where = f"{function}(), gradient of {name}"
        if is_variable_batch_size and gradient.shape != present.shape:
            raise ArgumentError(
                where=where,
                found=f"shape {list(gradient.shape)}",
                wanted=f"shape {list(present.shape)}",
                hint="A PEF has the batch size that it was compiled with.",
                deviation="fixed-batch-size",
            )
        if gradient.shape != present.shape or gradient.dtype != present.dtype:
            raise ArgumentError(
                where=where,
                found=f"shape {list(gradient.shape)} {gradient.dtype}",
                wanted=f"shape {list(present.shape)} {present.dtype}",
            )
        gradients[name] = gradient
    for name, gradient in gradients.items():
        memory.write_grad(name, gradient, stays=True)


def _named(tensors: Any, where: str) -> list[str]:
    """Names of outputs that are given as tensors or by name."""
    if isinstance(tensors, (str, torch.Tensor)):
        tensors = (tensors,)
    wanted = "SambaTensors or their names, in a list"
    try:
        items = list(tensors)
    except TypeError:
        raise ArgumentError(where=where, found=described(tensors), wanted=wanted) from None
    names = [item if isinstance(item, str) else getattr(item, "sn_name", None) for item in items]
    for item, name in zip(items, names, strict=True):
        if not isinstance(name, str):
            raise ArgumentError(where=where, found=described(item), wanted=wanted)
    return [name for name in names if isinstance(name, str)]


def _owner(memory: DeviceTensors, name: str) -> str:
    """The name of a tensor, also where its gradient's is given."""
    if not memory.knows(name):
        raise UnknownTensor(operation="utils.init_output_grads()", name=name)
    owner = name.removesuffix("__grad")
    return owner if memory.has_grad(owner) else name
