"""SambaSession: compile a model to a PEF, load it on the emulated device, run it."""

from __future__ import annotations

import atexit
import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from pef_schema.errors import SambaError
from samba import runtime
from samba.errors import ArgumentError
from samba.sambatensor import SambaTensor

if TYPE_CHECKING:
    from pef_schema.program import ArginKind, Program
    from samba.loading import Loaded

_RUN_KEYWORDS = (
    "input_tensors output_tensors hyperparam_dict data_parallel reduce_on_rdu section_ids "
    "section_types run_until_call_id run_from_call_id data_parallel_mode train grad_of_outputs "
    "graph_name"
).split()


class UnknownKeyword(SambaError, TypeError):
    """A function was given a keyword it does not have."""

    def __init__(self, *, function: str, found: Sequence[str], wanted: Sequence[str]) -> None:
        self.function, self.found, self.wanted = function, tuple(found), tuple(wanted)
        close = [c for f in found for c in difflib.get_close_matches(f, wanted, 1)]
        near = f" Did you mean {', '.join(close)}?" if close else f" It has {', '.join(wanted)}."
        super().__init__(
            f"{function}() got an unexpected keyword argument: {', '.join(found)}.{near}"
        )


class NotLoaded(SambaError, RuntimeError):
    """The session has no program on the device."""

    def __init__(self, *, operation: str) -> None:
        self.operation = operation
        super().__init__(
            f"samba.session.{operation}: nothing is on the device. "
            "Call samba.utils.trace_graph(model, inputs, optimizer, pef=<path>) first."
        )


class SambaSession:
    """The way from a torch model to a running program.

    Args:
        pef_path: A PEF to use where ``trace_graph`` is given none.

    Example:
        >>> import torch, samba
        >>> session = SambaSession()
        >>> session.tracing
        False
    """

    def __init__(self, pef_path: str = "") -> None:
        self._start(pef_path)

    def _start(self, pef_path: str) -> None:
        self.pef_path = pef_path
        self.tracing: bool = False
        self.buffer_dict: dict[str, SambaTensor] = {}
        self.traces = 0
        self._traced_by_name: dict[str, SambaTensor] = {}
        self._loaded: Loaded | None = None
        self._pinned = False

    # -- compile ------------------------------------------------------------

    def compile(
        self,
        model: torch.nn.Module,
        inputs: Any,
        optimizers: Any = None,
        name: str = "",
        loss_indices: Sequence[Any] | None = None,
        io_host_memory: bool | None = None,
        *,
        app_dir: str | None = None,
        config_dict: Mapping[str, Any] | None = None,
        pef_metadata: Mapping[str, Any] | None = None,
        metadata: Any = None,
        inference: bool | None = None,
        init_output_grads: bool | None = None,
        is_split_batch: bool = False,
        squeeze_bs_dim: bool = False,
        graph_transform_hook: Any = None,
        graph_names: Any = None,
        get_output_grads: Any = None,
    ) -> str:
        """Trace a model and its optimizers and compile them into a PEF.

        Args:
            model: The model; its parameters may be plain or converted.
            inputs: What ``forward`` takes: a tensor, a tuple or list, or a dict.
            optimizers: None, one optimizer or a list of them.
            name: Name of the program, and of the PEF where no ``pef_name`` is configured.
            loss_indices: Outputs that are losses. Without them the scalar outputs are, or
                the first floating output if there is none.
            config_dict: Parsed command line as a dict (``pef_name``, ``output_folder``,
                ``inference``, ``mapping``, ``optim_level``); the last one parsed if None.
            pef_metadata: Text to store in the PEF.
            inference: Forward only; overrides the configuration.
            is_split_batch: Whether gradients accumulate over several runs.
            io_host_memory, app_dir, metadata, init_output_grads, squeeze_bs_dim,
                graph_transform_hook, graph_names, get_output_grads: Accepted; they steer
                the hardware compiler and change nothing here.

        Returns:
            Path of the PEF. A ``.pef.log`` that lists its sections lies beside it.

        Raises:
            SambaError: If the model cannot be traced or compiled or the PEF cannot be
                written; a PEF that was there before is left as it was.
        """
        from samba.loading import compile_pef
        from samba.settings import compile_settings

        program_name = name or type(model).__name__.lower()
        settings = compile_settings(
            name=program_name,
            config=config_dict,
            inference=inference,
            is_split_batch=is_split_batch,
        )
        with self._tracing():
            path = compile_pef(
                model,
                inputs,
                optimizers,
                name=program_name,
                settings=settings,
                loss_indices=loss_indices,
                metadata=pef_metadata,
            )
        print(f"PEF file {path} created")
        return str(path)

    def _tracing(self) -> _TracingFlag:
        return _TracingFlag(self)

    # -- load ---------------------------------------------------------------

    def load(
        self,
        model: torch.nn.Module,
        inputs: Any,
        optimizers: Any,
        *,
        pef: str,
        loss_indices: Sequence[Any] | None,
        transfer_device: bool,
    ) -> tuple[SambaTensor, ...]:
        """Load a PEF for a model: what ``utils.trace_graph`` does.

        Args:
            model: The model; it must trace to the compiled graph.
            inputs: Inputs of the compiled names, shapes and dtypes.
            optimizers: None, one optimizer or a list.
            pef: Path of the PEF; the session's own if empty.
            loss_indices: Checked against the compiled ones if given.
            transfer_device: Whether weights, buffers, inputs and optimizer state go to
                the device now.

        Returns:
            Handles of the outputs.

        Raises:
            SambaError: If the PEF cannot be read, or model, inputs or optimizers are not
                the compiled ones. What was loaded before stays loaded.
        """
        from samba.loading import load_pef

        with self._tracing():
            loaded = load_pef(
                model, inputs, optimizers, pef=pef or self.pef_path, loss_indices=loss_indices
            )
        if transfer_device:
            loaded.to_device()
        self._loaded = loaded
        self.pef_path = pef or self.pef_path
        self._traced_by_name = loaded.tensors_by_name()
        runtime.set_device(loaded.memory)
        model.output_tensors = loaded.outputs  # type: ignore[assignment]  # where scripts look for it
        return loaded.outputs

    def _need(self, operation: str) -> Loaded:
        if self._loaded is None:
            raise NotLoaded(operation=operation)
        return self._loaded

    # -- run ----------------------------------------------------------------

    def run(
        self,
        input_tensors: Any = None,
        output_tensors: Any = (),
        hyperparam_dict: Mapping[str, Any] | None = None,
        data_parallel: bool = False,
        reduce_on_rdu: bool = False,
        section_ids: Sequence[Any] = (),
        section_types: Sequence[str] = (),
        run_until_call_id: int | None = None,
        run_from_call_id: int | None = None,
        data_parallel_mode: str = "normal",
        train: bool = True,
        grad_of_outputs: Any = None,
        graph_name: str | None = None,
        **unknown: Any,
    ) -> tuple[SambaTensor, ...]:
        """Transfer inputs, run the schedule or a part of it, fetch outputs.

        Args:
            input_tensors: Inputs, matched by name (unnamed ones by position): a tuple,
                list, single tensor, or dict; None entries are skipped. None transfers
                nothing: the device keeps what it has.
            output_tensors: Outputs to fetch; every one is returned, whatever ran.
            hyperparam_dict: ``lr``, ``momentum``, ``weight_decay``, ``p`` (all dropout
                rates) or names of single argins. Values stay until changed.
            section_ids: Sections to run, in this order.
            section_types: Types to run, in this order and in either case.
            run_until_call_id: Last call of the schedule to run.
            run_from_call_id: First call of the schedule to run.
            train: False sets dropout rates to 0 until a call with True.
            grad_of_outputs: One gradient or None for each output.
            data_parallel, reduce_on_rdu, data_parallel_mode: Replicas; without effect
                while there is one.
            graph_name: Name of the graph to run.

        Returns:
            The fetched outputs in the order of ``output_tensors``.

        Raises:
            SambaError: If anything does not fit the PEF. The device is then unchanged.
        """
        if unknown:
            raise UnknownKeyword(function="session.run", found=list(unknown), wanted=_RUN_KEYWORDS)
        loaded = self._loaded
        if loaded is None:
            raise NotLoaded(operation="run()")
        return loaded.runner.run(
            input_tensors,
            output_tensors,
            hyperparam_dict or {},
            (section_types, section_ids, run_from_call_id, run_until_call_id),
            grad_of_outputs,
            train,
        )

    # -- host and device ----------------------------------------------------

    def to_cpu(self, model: torch.nn.Module, optims: Any = None, inplace: bool = False) -> None:
        """Copy parameters, buffers and optimizer state from the device to the host.

        Args:
            model: The model to update.
            optims: Its optimizers, None to leave their state alone.
            inplace: Whether host memory is written in place; it always is, so that
                everything that shares it sees the new values.
        """
        self._need("to_cpu()").to_cpu(model, optims)

    def to_cpu_(self, model: torch.nn.Module, optims: Any = None) -> None:
        """:meth:`to_cpu` in place."""
        self.to_cpu(model, optims, inplace=True)

    def to_rdu(self, model: torch.nn.Module, optims: Any = None) -> None:
        """Copy parameters, buffers and optimizer state from the host to the device.

        Args:
            model: The model to read.
            optims: Its optimizers, None to leave their state alone.
        """
        self._need("to_rdu()").to_rdu(model, optims)

    def to_device(self) -> None:
        """Copy everything that was traced from the host to the device."""
        self._need("to_device()").to_device()

    def sync_buffers_to_cpu(self, model: torch.nn.Module, inplace: bool = False) -> None:
        """Copy the model's buffers from the device to the host."""
        self._need("sync_buffers_to_cpu()").to_cpu(model, None, buffers_only=True)

    def sync_buffers_to_rdu(self, model: torch.nn.Module) -> None:
        """Copy the model's buffers from the host to the device."""
        self._need("sync_buffers_to_rdu()").to_rdu(model, None, buffers_only=True)

    def get_tensors(self, samba_tensors: Sequence[SambaTensor]) -> tuple[SambaTensor, ...]:
        """Fetch device memory of the given tensors.

        Args:
            samba_tensors: Tensors with the names to fetch.

        Returns:
            New tensors of the same names.
        """
        return self.get_tensors_by_name([t.sn_name for t in samba_tensors])

    def get_tensors_by_name(self, names: Sequence[str]) -> tuple[SambaTensor, ...]:
        """Fetch device memory by tensor or region name.

        Args:
            names: Names to fetch.

        Returns:
            New tensors of these names.
        """
        memory = self._need("get_tensors_by_name()").memory
        return tuple(SambaTensor(memory.read(name), name=name) for name in names)

    def get_samba_tensor_by_name(self, name: str) -> SambaTensor:
        """The traced host tensor of a name; fetches nothing from the device.

        Raises:
            ArgumentError: If no traced tensor has that name.
        """
        self._need("get_samba_tensor_by_name()")
        found = self._traced_by_name.get(name)
        if found is None:
            close = difflib.get_close_matches(name, self._traced_by_name, 3)
            raise ArgumentError(
                where="session.get_samba_tensor_by_name(name)",
                found=repr(name),
                wanted="the name of a traced tensor" + (f", such as {', '.join(close)}" if close else ""),
            )
        return found

    def update_tensor(self, name: str, tensor: SambaTensor | None) -> None:
        """Give a traced tensor new values on the host, or forget it with None.

        Args:
            name: Name of the traced tensor.
            tensor: New values of the same shape and dtype.
        """
        if tensor is None:
            self._need("update_tensor()")
            self._traced_by_name.pop(name, None)
            return
        traced = self.get_samba_tensor_by_name(name)
        if traced.shape != tensor.shape or traced.dtype != tensor.dtype:
            raise ArgumentError(
                where=f"session.update_tensor({name!r}, tensor)",
                found=f"shape {list(tensor.shape)} {tensor.dtype}",
                wanted=f"shape {list(traced.shape)} {traced.dtype}",
            )
        with torch.no_grad():
            traced.data.copy_(tensor.data if isinstance(tensor, SambaTensor) else tensor)

    # -- what the PEF holds -------------------------------------------------

    def get_weight_names(self) -> list[str]:
        """Names of all weights in the PEF."""
        from pef_schema.program import Role

        program = self._need("get_weight_names()").program
        return [
            s.name for s in program.symbols if program.regions[s.region].role is Role.WEIGHT
        ]

    def get_section_types(self) -> set[str]:
        """Section types in the PEF, e.g. ``{"FWD", "BCKWD", "OPT"}``."""
        program = self._need("get_section_types()").program
        return {kind.name for section in program.sections for kind in section.kinds}

    def get_argin_names(self) -> dict[str, None]:
        """Names of the hyperparameters that ``run`` takes, as an ordered set."""
        program = self._need("get_argin_names()").program
        return dict.fromkeys(a.name for a in program.argins)

    def get_dropout_rate_argin_names(self) -> list[str]:
        """Names of the argins that hold dropout rates."""
        from pef_schema.program import ArginKind

        return self._argins(ArginKind.DROPOUT_RATE, "get_dropout_rate_argin_names()")

    def get_dropout_seed_argin_names(self) -> list[str]:
        """Names of the argins that restart the dropout's random stream."""
        from pef_schema.program import ArginKind

        return self._argins(ArginKind.DROPOUT_SEED, "get_dropout_seed_argin_names()")

    def _argins(self, kind: ArginKind, operation: str) -> list[str]:
        return [a.name for a in self._need(operation).program.argins if a.kind is kind]

    @property
    def program(self) -> Program | None:
        """The loaded program, None before ``trace_graph``."""
        return None if self._loaded is None else self._loaded.program

    def need_program(self, operation: str) -> Program:
        """The loaded program.

        Raises:
            NotLoaded: If there is none; ``operation`` says who asked.
        """
        return self._need(operation).program

    def synchronize(self) -> None:
        """Wait until everything that was started on the device is done."""
        self._need("synchronize()").device.synchronize()

    @property
    def compiles(self) -> int:
        """How many plans XLA compiled for the loaded program."""
        return 0 if self._loaded is None else self._loaded.device.counters.compiles

    # -- life cycle ---------------------------------------------------------

    def reset(self, pef_path: str = "") -> None:
        """Close the device and start over, with another PEF if one is given."""
        runtime.set_device(None)
        self._start(str(pef_path))

    def reset_random_generator(self) -> None:
        """Restart the device's random stream from its present seed."""
        device = self._need("reset_random_generator()").device
        for name in self.get_dropout_seed_argin_names():
            index = device.argin_index[name]
            device.set_argin(index, device.argin(index))

    def atexit_register(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Register an exit handler, as :func:`atexit.register` does."""
        atexit.register(func, *args, **kwargs)

    def enable_pinned_memory(self) -> None:
        """Record that pinned memory is wanted; host and device share memory here anyway."""
        self._pinned = True

    def disable_pinned_memory(self) -> None:
        """Record that pinned memory is not wanted."""
        self._pinned = False

    def use_pinned_memory(self) -> bool:
        """Whether pinned memory is wanted."""
        return self._pinned

    def use_static_functional(self) -> bool:
        """Whether operations are being recorded rather than computed."""
        return self.tracing


class _TracingFlag:
    """``session.tracing`` is True inside."""

    def __init__(self, session: SambaSession) -> None:
        self._session = session

    def __enter__(self) -> None:
        self._session.tracing = True
        self._session.traces += 1

    def __exit__(self, *_: object) -> None:
        self._session.tracing = False

