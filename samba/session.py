"""SambaSession: compile a model to a PEF, load it on the emulated device, run it."""

from __future__ import annotations

import atexit
import difflib
from collections.abc import Callable, KeysView, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from pef_schema.errors import SambaError
from samba import runtime
from samba._keywords import refuse_unknown
from samba.errors import ArgumentError, UnknownTensor
from samba.sambatensor import SambaTensor
from samba.settings import check_data_parallel_mode

if TYPE_CHECKING:
    from pef_schema.program import ArginKind, Program
    from samba.loading import Loaded

_PLAIN = (tuple, list, str, int, type(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What a session did since it was made or reset.

    Args:
        traces: Models traced, by ``compile`` and ``trace_graph``.
        compiles: Plans that XLA compiled: one for each different selection of sections.
        runs: Plans run.
    """

    traces: int
    compiles: int
    runs: int


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
        self._traces = self._compiles = self._runs = 0
        self._forgotten: set[str] = set()
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
        **unknown: Any,
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
        from samba.compiling import compile_pef
        from samba.settings import compile_settings

        refuse_unknown("session.compile", SambaSession.compile, unknown)

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
        config: Mapping[str, Any] | None = None,
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
            config: ``config_dict`` of the application; the last parsed command line if None.

        Returns:
            Handles of the outputs.

        Raises:
            SambaError: If the PEF cannot be read, or model, inputs or optimizers are not
                the compiled ones. What was loaded before stays loaded.
        """
        from samba.loading import load_pef

        with self._tracing():
            loaded = load_pef(
                model,
                inputs,
                optimizers,
                pef=pef or self.pef_path,
                loss_indices=loss_indices,
                config=config,
            )
        if transfer_device:
            loaded.to_device()
        counted = self.counters
        self._compiles, self._runs = counted.compiles, counted.runs
        self._loaded = loaded
        self.pef_path = pef or self.pef_path
        self._forgotten = set()
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
            refuse_unknown("session.run", SambaSession.run, unknown)
        loaded = self._loaded
        if loaded is None:
            raise NotLoaded(operation="run()")
        if data_parallel_mode != "normal":
            check_data_parallel_mode(data_parallel_mode, "session.run")
        if type(section_types) not in _PLAIN:
            section_types = list(section_types)
        if type(section_ids) not in _PLAIN:
            section_ids = list(section_ids)
        return loaded.runner.run(
            input_tensors,
            output_tensors,
            {} if hyperparam_dict is None else hyperparam_dict,
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
        self._need("to_device()").to_device(frozenset(self._forgotten))

    def sync_buffers_to_cpu(self, model: torch.nn.Module, inplace: bool = False) -> None:
        """Copy the model's buffers from the device to the host."""
        operation = "sync_buffers_to_cpu()"
        self._need(operation).to_cpu(model, None, buffers_only=True, operation=operation)

    def sync_buffers_to_rdu(self, model: torch.nn.Module) -> None:
        """Copy the model's buffers from the host to the device."""
        operation = "sync_buffers_to_rdu()"
        self._need(operation).to_rdu(model, None, buffers_only=True, operation=operation)

    def get_tensors(self, samba_tensors: Sequence[SambaTensor]) -> tuple[SambaTensor, ...]:
        """Fetch device memory of the given tensors.

        Args:
            samba_tensors: Tensors with the names to fetch; one tensor alone counts as a list.

        Returns:
            New tensors of the same names.

        Raises:
            SambaError: If the device does not know one of them, or holds no data for it.
        """
        tensors = [samba_tensors] if isinstance(samba_tensors, torch.Tensor) else samba_tensors
        return self._fetch("get_tensors()", [getattr(t, "sn_name", "") for t in tensors])

    def get_tensors_by_name(self, names: Sequence[str]) -> tuple[SambaTensor, ...]:
        """Fetch device memory by tensor or region name.

        Args:
            names: Names to fetch, those of gradients included; one name alone counts as a list.

        Returns:
            New tensors of these names.

        Raises:
            SambaError: If the device does not know one of them, or holds no data for it.
        """
        return self._fetch("get_tensors_by_name()", [names] if isinstance(names, str) else names)

    def _fetch(self, operation: str, names: Sequence[str]) -> tuple[SambaTensor, ...]:
        memory = self._need(operation).memory
        for name in names:
            if not memory.knows(name):
                raise UnknownTensor(operation=f"session.{operation}", name=name)
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
                wanted="the name of a traced tensor"
                + (f", such as {', '.join(close)}" if close else ""),
            )
        return found

    def update_tensor(self, name: str, tensor: SambaTensor | None) -> None:
        """Give a traced tensor new values on the host, or forget it with None.

        ``to_device`` takes the new values to the device, and leaves out what is forgotten.

        Args:
            name: Name of the traced tensor.
            tensor: New values of the same shape and dtype.

        Raises:
            ArgumentError: If no traced tensor has that name, or the values do not fit it.
        """
        traced = self.get_samba_tensor_by_name(name)
        if tensor is None:
            del self._traced_by_name[name]
            self._forgotten.add(name)
            return
        if traced.shape != tensor.shape or traced.dtype != tensor.dtype:
            raise ArgumentError(
                where=f"session.update_tensor({name!r}, tensor)",
                found=f"shape {list(tensor.shape)} {tensor.dtype}",
                wanted=f"shape {list(traced.shape)} {traced.dtype}",
            )
        values = tensor.data
        if traced.has_data:
            traced.data.copy_(values)
        else:
            traced.data = values.clone()

    # -- what the PEF holds -------------------------------------------------

    def get_weight_names(self) -> list[str]:
        """Names of all weights in the PEF."""
        from pef_schema.program import Role

        program = self._need("get_weight_names()").program
        return [s.name for s in program.symbols if program.regions[s.region].role is Role.WEIGHT]

    def get_section_types(self) -> set[str]:
        """Section types in the PEF, e.g. ``{"FWD", "BCKWD", "OPT"}``."""
        program = self._need("get_section_types()").program
        return {kind.name for section in program.sections for kind in section.kinds}

    def get_argin_names(self) -> KeysView[str]:
        """Names of the hyperparameters that ``run`` takes, as an ordered set."""
        program = self._need("get_argin_names()").program
        return dict.fromkeys(a.name for a in program.argins).keys()

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
    def counters(self) -> Counters:
        """How often models were traced, and plans compiled and run, since the session began.

        Example:
            >>> SambaSession().counters
            Counters(traces=0, compiles=0, runs=0)
        """
        device = None if self._loaded is None else self._loaded.device.counters
        return Counters(
            traces=self._traces,
            compiles=self._compiles + (0 if device is None else device.compiles),
            runs=self._runs + (0 if device is None else device.runs),
        )

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
        self._session._traces += 1

    def __exit__(self, *_: object) -> None:
        self._session.tracing = False
