"""SambaSession: compile a model to a PEF, load it on the emulated device, run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from samba.errors import NotLoaded
from samba.nn.buffers import converted_buffers, forget_converted_buffers
from samba.profiler import PROFILER
from samba.sambatensor import SambaTensor
from samba.session.facts import Facts
from samba.session.modes import Modes
from samba.session.multigraph.graphs import Graphs
from samba.session.onnx_model import OnnxModels
from samba.session.profiling import Profiling
from samba.session.settings import check_data_parallel_mode
from samba.session.transfers import Transfers
from samba.support.keywords import refuse_unknown
from samba.tensor import device_door as runtime
from samba.tensor.labels import forget_fast_access

if TYPE_CHECKING:
    from samba.session.loading import Loaded

_PLAIN = (tuple, list, str, int, type(None))


class SambaSession(Graphs, Transfers, Facts, Profiling, Modes):
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
        self._traces = self._compiles = self._runs = 0
        self._forgotten: set[str] = set()
        self._traced_by_name: dict[str, SambaTensor] = {}
        self._loaded: Loaded | None = None
        forget_fast_access()
        self._forget_modes()
        self._forget_graphs()
        self._onnx = OnnxModels()

    @property
    def buffer_dict(self) -> dict[str, SambaTensor]:
        """SambaTensors over the buffers of converted models, by name."""
        return converted_buffers()

    # -- compile ------------------------------------------------------------

    def compile(
        self,
        model: torch.nn.Module | Any,
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
            model: The model; its parameters may be plain or converted. An ONNX ``ModelProto``
                needs the extra ``onnx``.
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
        from samba.session.compiling import compile_pef
        from samba.session.settings import compile_settings

        refuse_unknown("session.compile", SambaSession.compile, unknown)
        model = self._onnx.module(model, "session.compile")
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
        model: torch.nn.Module | Any,
        inputs: Any,
        optimizers: Any,
        *,
        pef: str,
        loss_indices: Sequence[Any] | None,
        transfer_device: bool,
        config: Mapping[str, Any] | None = None,
        data_parallel_mode: str = "normal",
        distlearn_config: Any = None,
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
            data_parallel_mode: The one that ``run`` will be given.
            distlearn_config: Anything but None or "" asks for replicas.

        Returns:
            Handles of the outputs.

        Raises:
            SambaError: If the PEF cannot be read, or model, inputs or optimizers are not
                the compiled ones. What was loaded before stays loaded.
        """
        from samba.session.loading import load_pef

        model = self._onnx.module(model, "utils.trace_graph")
        with self._tracing():
            loaded = load_pef(
                model,
                inputs,
                optimizers,
                pef=pef or self.pef_path,
                loss_indices=loss_indices,
                config=config,
                data_parallel_mode=data_parallel_mode,
                distlearn_config=distlearn_config,
            )
        if transfer_device:
            loaded.to_device()
        self._take(loaded, pef)
        model.output_tensors = loaded.outputs  # pyright: ignore[reportArgumentType]  # where scripts look for it
        return loaded.outputs

    def _take(self, loaded: Loaded, pef: str) -> None:
        """Make a loaded program the session's."""
        counted = self.counters
        self._compiles, self._runs = counted.compiles, counted.runs
        self._loaded = loaded
        self.pef_path = pef or self.pef_path
        self._forgotten = set()
        self._traced_by_name = loaded.tensors_by_name()
        runtime.open_door(loaded.memory)

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
            output_tensors: Outputs to fetch, or their names; every one is returned, whatever
                ran. One that no run has computed yet is zeros, and a warning says so.
            hyperparam_dict: ``lr``, ``momentum``, ``weight_decay``, ``p`` (all dropout
                rates) or names of single argins. Values stay until changed; those of the
                compile hold at first. A key without a prefix leaves optimizers alone that
                have an ``argin_region_name``. Unknown keys are ignored, with a warning.
            section_ids: Sections to run, in this order; lists of them may be nested.
            section_types: Types to run, in this order and in either case.
            run_until_call_id: Last call of the schedule to run.
            run_from_call_id: First call of the schedule to run.
            train: False sets dropout rates to 0 until a call with True.
            grad_of_outputs: One gradient or None for each output; like those that are set as
                ``output.sn_grad`` they stay until others are given.
            data_parallel: Average gradients over all replicas; they must then run the same.
            reduce_on_rdu: Average them in device memory instead of in a copy on the host.
            data_parallel_mode: ``"normal"``: everything in the order of the PEF; ``"inorder"``:
                reductions beside other sections; ``"optimal"``: optimizer updates also out of
                order. The results are the same. ``trace_graph`` must have been given the same.
            graph_name: Name of the graph to run; needed where the PEF has several.

        Returns:
            The fetched outputs in the order of ``output_tensors``.

        Raises:
            SambaError: If anything does not fit the PEF. The device is then unchanged.
            DataParallelError: If a replica is gone or does not answer in time.
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
        wanted = (
            input_tensors,
            output_tensors,
            {} if hyperparam_dict is None else hyperparam_dict,
            (section_types, section_ids, run_from_call_id, run_until_call_id),
            grad_of_outputs,
            train,
            loaded.replicas.wish(data_parallel, reduce_on_rdu, data_parallel_mode),
        )
        runner = loaded.only
        if runner is None or graph_name is not None:
            runner = loaded.runner(graph_name)
        if PROFILER.started:
            return runner.run_timed(*wanted, pinned=self._pinned)
        return runner.run(*wanted)

    # -- life cycle ---------------------------------------------------------

    def reset(self, pef_path: str = "") -> None:
        """Close the device and start over, with another PEF if one is given."""
        runtime.close_door()
        forget_converted_buffers()
        self._start(str(pef_path))

    def reset_random_generator(self) -> None:
        """Restart the device's random stream from its present seed."""
        device = self._need("reset_random_generator()").device
        for name in self.get_dropout_seed_argin_names():
            index = device.argin_index[name]
            device.set_argin(index, device.argin(index))


class _TracingFlag:
    """``session.tracing`` is True inside."""

    def __init__(self, session: SambaSession) -> None:
        self._session = session

    def __enter__(self) -> None:
        self._session.tracing = True
        self._session._traces += 1

    def __exit__(self, *_: object) -> None:
        self._session.tracing = False
