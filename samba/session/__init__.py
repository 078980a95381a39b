"""SambaSession: compile a model to a PEF, load it on the emulated device, run it.

Compiling is in ``compiling.py``, loading in ``loading.py``, running in ``running.py``. The other
methods are those of the session's parts: the table in ``parts.py`` says whose.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import length_hint
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from samba.errors import NotLoaded
from samba.profiler import PROFILER
from samba.sambatensor import SambaTensor
from samba.session.compiling import compile_pef, say_created
from samba.session.hyperparams import random_state, set_random_state
from samba.session.parts import SessionParts, callable_on_class
from samba.session.program_slot import Counters
from samba.session.request import RunRequest, listed
from samba.session.settings import check_data_parallel_mode, compile_settings
from samba.session.spilling import Spill
from samba.session.start_line import importing
from samba.support import tracing
from samba.support.given import flag_of, path_of, refuse_unknown, text_of
from samba.support.tracing import refuse_while_tracing, set_tracing

if TYPE_CHECKING:
    from emulator.device import Device
    from samba.session.evaluation import Evaluator
    from samba.session.running import Runner

__all__ = ["Counters", "SambaSession"]

_PLAIN = (tuple, list, str, int)


class SambaSession(SessionParts):
    """The way from a torch model to a running program.

    Scripts use one, ``samba.session``. Another one has a program and settings of its own; the
    device memory that SambaTensors see is that of the program loaded last.

    Args:
        pef_path: A PEF to use where ``trace_graph`` is given none. It is parsed here: names and
            section types can be asked for at once.

    Raises:
        PefError: There is no such file, or it is not a whole PEF of a known version.

    Attributes:
        buffer_dict: SambaTensors over the buffers of converted models, by name; conversion adds
            to that of ``samba.session``.

    Example:
        >>> import torch, samba
        >>> session = SambaSession()
        >>> session.tracing
        False
    """

    of_process: ClassVar[SambaSession]
    """The session of the process: methods that can be called on the class work on it."""

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
            inputs: What ``forward`` takes: a tensor, a tuple or list, or a dict by name in any
                order, in which numbers, bools and strings are constants of the graph.
            optimizers: None, one optimizer or a list of them.
            name: Name of the program, and of the PEF where no ``pef_name`` is configured.
            loss_indices: Outputs that are losses, by position. Without them the floating
                scalars among the outputs are, or every floating output if there is no scalar;
                outputs without a gradient (an accuracy) are none. The losses are printed and
                lie in the ``.pef.log``; if more than one output counts, or none although
                there is an optimizer, a warning says so.
            config_dict: Parsed command line as a dict (``pef_name``, ``output_folder``,
                ``inference``, ``mapping``, ``optim_level``); the last one parsed if None. With
                ``compile -p x.pef`` the PEF is that file.
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
        refuse_unknown("session.compile", SambaSession.compile, unknown)
        where = "session.compile"
        text_of(name, f"{where}(name=...)")
        for what, flag in (("io_host_memory", io_host_memory), ("inference", inference)):
            if flag is not None:
                flag_of(flag, f"{where}({what}=...)")
        if is_split_batch is not None:
            flag_of(is_split_batch, f"{where}(is_split_batch=...)")
        model = self._slot.onnx.module(model, where)
        program_name = name or type(model).__name__.lower()
        settings = compile_settings(
            name=program_name,
            config=config_dict,
            inference=inference,
            is_split_batch=is_split_batch,
        )
        start = time.perf_counter()
        with self._slot.tracing():
            path = compile_pef(
                model,
                inputs,
                optimizers,
                settings=settings,
                loss_indices=loss_indices,
                metadata=pef_metadata,
            )
        then = "samba.utils.trace_graph(model, inputs, optimizer, pef=...)"
        say_created(path, seconds=time.perf_counter() - start, otherwise=then)
        self._slot.pef_path = str(path)
        return str(path)

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
        init_output_grads: bool = True,
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
            init_output_grads: Whether losses start from ones until another gradient is set.
            config: ``config_dict`` of the application; the last parsed command line if None.
            data_parallel_mode: The one that ``run`` will be given.
            distlearn_config: Anything but None or "" asks for replicas.

        Returns:
            Handles of the outputs.

        Raises:
            SambaError: If the PEF cannot be read, or model, inputs or optimizers are not
                the compiled ones. What was loaded before stays loaded.
        """
        self._slot.refuse_inside("load()")
        path = pef or self._slot.pef_path
        model = self._slot.onnx.module(model, "utils.trace_graph")
        with Spill(model.parameters() if transfer_device else ()) as spill:
            with importing():
                from samba.session.host_writes import tell_if_older  # noqa: PLC0415  # loads jax
                from samba.session.loading import load_pef  # noqa: PLC0415  # as well

            with self._slot.tracing():
                loaded = load_pef(
                    model,
                    inputs,
                    optimizers,
                    pef=path,
                    loss_indices=loss_indices,
                    config=config,
                    data_parallel_mode=data_parallel_mode,
                    distlearn_config=distlearn_config,
                )
            try:
                if not init_output_grads:
                    loaded.device.leave_losses_alone()
                if transfer_device:
                    tell_if_older([model], loaded.optimizers, "trace_graph")
                    loaded.to_device(spill=spill)
            except BaseException:
                loaded.close()  # or notes about its tensors would outlive it
                raise
        self._slot.take(loaded, path)
        model.output_tensors = loaded.outputs  # pyright: ignore[reportArgumentType]  # where scripts look for it
        return loaded.outputs

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
                nothing: the device keeps what it has. Inputs that no run was given yet are those
                of ``trace_graph``; a warning names them unless None stands in their place.
            output_tensors: Outputs to fetch, or their names; every one is returned, whatever
                ran. One that no run has computed yet is zeros, and a warning says so.
            hyperparam_dict: ``lr``, ``momentum``, ``weight_decay``, ``p`` (all dropout
                rates) or names of single argins. Values stay until changed; those of the
                compile hold at first. A key without a prefix leaves optimizers alone that
                have an ``argin_region_name``. Unknown keys are ignored, with a warning. What
                schedulers change in ``optimizer.param_groups`` counts where this says nothing.
            section_ids: Sections to run, in this order; lists of them may be nested.
            section_types: Types to run, in this order and in either case.
            run_until_call_id: Last call of the schedule to run.
            run_from_call_id: First call of the schedule to run.
            train: False sets dropout rates to 0 until a call with True.
            grad_of_outputs: One gradient or None for each output; like those that are set as
                ``output.sn_grad`` they stay until others are given, and a backward pass that
                starts from one of an earlier run is told once.
            data_parallel: Average gradients over all replicas; they must then run the same.
            reduce_on_rdu: Average them in device memory instead of in a copy on the host.
            data_parallel_mode: ``"normal"``: everything in the order of the PEF; ``"inorder"``:
                reductions beside other sections; ``"optimal"``: optimizer updates also out of
                order. The results are the same. ``trace_graph`` must have been given the same.
            graph_name: Name of the graph to run. None runs the whole schedule: all graphs of the
                PEF in their order, each with the inputs of its own among ``input_tensors``.

        Returns:
            The fetched outputs in the order of ``output_tensors``.

        Raises:
            SambaError: If anything does not fit the PEF. The device is then unchanged.
            LostMemory: If a run has failed after it had taken memory that this one needs.
            KeyboardInterrupt: Or what else a signal's handler raises; the run took place wholly,
                which a note of the error says, or not at all: see ``docs/interrupts.md``.
            IndexOutOfRange: An ``IndexError``: an input is used as indices or labels, and one is
                out of range.
            DataParallelError: If a replica is gone or does not answer in time.
            SessionInUse: If it is called within a run, by a signal handler or a callback. Another
                thread waits instead, until the run under way has returned.
            ForkedProcess: In a process that was forked after the program was loaded.
        """
        if unknown:
            refuse_unknown("session.run", SambaSession.run, unknown)
        loaded = self._slot.loaded
        if loaded is None:
            raise NotLoaded(operation="run()")
        if tracing.active:
            refuse_while_tracing("run()")
        if data_parallel_mode != "normal":
            check_data_parallel_mode(data_parallel_mode, "session.run")
        if section_types is not None and type(section_types) not in _PLAIN:
            section_types = listed(section_types, "session.run(section_types=...)")
        if section_ids is not None and type(section_ids) not in _PLAIN:
            section_ids = listed(section_ids, "session.run(section_ids=...)")
        if reduce_on_rdu:
            flag_of(reduce_on_rdu, "session.run(reduce_on_rdu=...)")
        replicas, wish = loaded.replicas, None
        if data_parallel or replicas.size > 1:
            if data_parallel:
                flag_of(data_parallel, "session.run(data_parallel=...)")
            wish = replicas.wish(data_parallel, reduce_on_rdu, data_parallel_mode)
        request = RunRequest(
            input_tensors,
            output_tensors,
            {} if hyperparam_dict is None else hyperparam_dict,
            (section_types, section_ids, run_from_call_id, run_until_call_id),
            grad_of_outputs,
            train,
            wish,
        )
        runner = loaded.only if graph_name is None else loaded.runner(graph_name)
        turns, outputs = loaded.turns, None
        try:
            with turns.lock:
                if turns.thread or turns.closed:
                    turns.refuse("run()")
                runner.mark = length_hint(runner.ticks)
                try:  # as in Turns.run
                    turns.thread = get_ident()
                    if PROFILER.active:
                        outputs = self._observed(loaded.device, runner, request)
                    else:
                        outputs = runner.run(request)
                    turns.thread = 0
                except BaseException as error:
                    turns.thread, outputs = 0, None
                    runner.explain(error)
                    raise
            return outputs
        except BaseException as error:
            if outputs is not None:  # a handler has raised when the run was done
                runner.explain(error)
            raise

    def _observed(
        self, device: Device, runner: Runner, request: RunRequest
    ) -> tuple[SambaTensor, ...]:
        if PROFILER.timeline is not None:
            outputs = runner.run_on_timeline(request, PROFILER.timeline)
        elif PROFILER.started:
            outputs = runner.run_timed(request, pinned=self._modes.use_pinned_memory())
        else:
            outputs = runner.run(request)
        if PROFILER.follower is not None:
            PROFILER.follower.ran(device, runner.steps_of(request))
        return outputs

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> AbstractContextManager[None]:
        """Train while the data of some replicas ends before that of others.

        As with ``torch.nn.parallel.DistributedDataParallel.join``: a replica that is at the end of
        the body takes part in the runs of the others, with gradients of zero, until all are there.
        It makes their updates too, so weights and optimizer states stay the same on all of them.
        All replicas enter the body; within it they do nothing together but ``run``.

        Args:
            divide_by_initial_world_size: Whether gradients are divided by the number of all
                replicas, or of those that have data.
            enable: False changes nothing, for data that is known to be even.
            throw_on_early_termination: Whether all replicas raise as soon as the data of one
                ends.

        Returns:
            A context. With one replica it changes nothing.

        Raises:
            NotLoaded: If nothing is loaded.
            NotJoinable: If a Bagua algorithm takes the place of averaged gradients.
            DataEnded: A ``RuntimeError``; with ``throw_on_early_termination``.
            DataParallelError: If a replica is gone, or does something else.
        """
        loaded = self._slot.need("join()")
        if not enable:
            return nullcontext()
        return loaded.joining(
            by_initial_size=bool(divide_by_initial_world_size),
            throws=bool(throw_on_early_termination),
        )

    def evaluator(self, model: torch.nn.Module | Any, inputs: Any = None) -> Evaluator:
        """The loaded model in evaluation mode: running statistics, no dropout, any batch size.

        It shares device memory with the loaded program: each run takes the weights and running
        statistics that training has then. See ``docs/evaluation.md``.

        Args:
            model: The model that was given to ``trace_graph``.
            inputs: Inputs of the shapes to evaluate with, in the form for ``trace_graph``; None
                for those of the loaded program.

        Returns:
            What ``run(input_tensors, output_tensors)`` is called on, as often as wanted.

        Raises:
            NotLoaded: If nothing is loaded.
            SambaError: If the model is another one, or cannot be traced in evaluation mode.
        """
        from samba.session.evaluation import Evaluator  # noqa: PLC0415  # loads jax

        return Evaluator(self._slot, self._slot.onnx.module(model, "session.evaluator"), inputs)

    def synchronize(self) -> None:
        """Wait until everything that was started on the device is done."""
        loaded = self._slot.need("synchronize()")
        with loaded.turns.held():
            loaded.device.synchronize()

    def reset_random_generator(self) -> None:
        """Restart the device's random stream from its present seed."""
        loaded = self._slot.need("reset_random_generator()")
        device = loaded.device
        with loaded.turns.held():
            for name in self.get_dropout_seed_argin_names():
                index = device.argin_index[name]
                device.set_argin(index, device.argin(index))

    def get_rng_state(self) -> torch.Tensor:
        """Where the device's random streams stand, for a checkpoint.

        Returns:
            int64 ``(streams, 2)``, seed and position of each; the same on every replica.

        Raises:
            NotLoaded: If nothing is loaded.
        """
        loaded = self._slot.need("get_rng_state()")
        with loaded.turns.held():
            return random_state(loaded.device)

    def set_rng_state(self, state: torch.Tensor) -> None:
        """Let the device's random streams go on where they stood: masks of dropout are exact then.

        Args:
            state: What :meth:`get_rng_state` has given.

        Raises:
            NotLoaded: If nothing is loaded.
            ArgumentError: If it is not the state of a program with as many streams.
        """
        loaded = self._slot.need("set_rng_state()")
        with loaded.turns.held():
            set_random_state(loaded.device, state)

    # -- life cycle ---------------------------------------------------------

    @callable_on_class
    def reset(self, pef_path: str = "") -> None:
        """Close the device and start over, with another PEF if one is given.

        Args:
            pef_path: The PEF, which is parsed here, as ``SambaSession(pef_path)`` does.

        Raises:
            PefError: There is no such file, or it is not a whole PEF of a known version; the
                session then starts over without one.
        """
        if pef_path:
            path_of(pef_path, "session.reset(pef_path)")
        self._slot.close()
        set_tracing(False)
        self._start()
        self._open(pef_path)
