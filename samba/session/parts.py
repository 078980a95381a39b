"""What a session holds, and the methods that are those of its parts.

The table names for each method the part that it is of. A reset makes new parts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar, cast

from pef_schema.drawing import drawn
from samba.errors import NotCopyable
from samba.lazy_param import disable_lazy_param, enable_lazy_param, use_lazy_param
from samba.profiler import PROFILER, Profiler
from samba.sambatensor import DimInfo, SambaTensor
from samba.session.following import Following
from samba.session.metrics import Metrics, MetricsBook
from samba.session.modes import Modes
from samba.session.multigraph.builder import GraphBuilder
from samba.session.profiling import Profiling, RuntimeProfile
from samba.session.program_slot import Counters, ProgramSlot
from samba.session.transfers import LoadedNames, Transfers
from samba.support.given import flag_of, path_of
from samba.support.tracing import is_tracing, set_tracing

if TYPE_CHECKING:
    from pef_schema.program import Program
    from samba.session.loaded import Loaded
    from samba.session.memory import SessionMemory

P = ParamSpec("P")
R = TypeVar("R")


def method_of(
    part: str, method: Callable[Concatenate[Any, P], R]
) -> Callable[Concatenate[Any, P], R]:
    """A method that calls the same method of a part, with its signature and its docstring.

    Args:
        part: Attribute under which the façade holds the part.
        method: The part's method.

    Example:
        >>> class Engine:
        ...     def start(self, gently=True):
        ...         return f"started {'gently' if gently else 'hard'}"
        >>> class Car:
        ...     def __init__(self):
        ...         self.engine = Engine()
        ...     start = method_of("engine", Engine.start)
        >>> Car().start(gently=False)
        'started hard'
    """

    @functools.wraps(method)
    def forwarded(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(getattr(self, part), *args, **kwargs)

    return forwarded


class _OnClassToo:
    """A method that works on an instance, and on the class for its instance of the process."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        functools.update_wrapper(self, method)  # pyright: ignore[reportArgumentType]  # of a descriptor

    def __get__(self, instance: Any, owner: type) -> Any:
        target = cast("Any", owner).of_process if instance is None else instance
        return self._method.__get__(target, owner)


F = TypeVar("F", bound=Callable[..., Any])


def callable_on_class(method: F) -> F:
    """A method that can also be called on the class, like SambaFlow's static methods.

    Args:
        method: The method. On the class it works on ``of_process``, an attribute of the class.

    Example:
        >>> class Session:
        ...     of_process = None
        ...     def __init__(self, name): self.name = name
        ...     @callable_on_class
        ...     def reset(self): return f"reset {self.name}"
        >>> Session.of_process = Session("the first")
        >>> Session.reset(), Session("another").reset()
        ('reset the first', 'reset another')
    """
    return cast("F", _OnClassToo(method))


class SessionParts:
    """A program, and what a session records beside it.

    It knows nothing of compiling, loading and running, which ``SambaSession`` adds.

    Args:
        pef_path: A PEF to use where none is named; it is parsed here.

    Raises:
        PefError: There is no such file, or it is not a whole PEF of a known version.

    Attributes:
        buffer_dict: SambaTensors over the buffers of converted models, by name.
    """

    def __init__(self, pef_path: str = "") -> None:
        self._runtime_profile = RuntimeProfile()
        self._book = MetricsBook()
        self._start()
        self._open(pef_path)

    def __reduce_ex__(self, protocol: object, /) -> NoReturn:
        """A session stays where it is: neither ``copy`` nor ``pickle`` take it along."""
        raise NotCopyable(what="session")

    def _open(self, pef_path: str) -> None:
        if pef_path:
            self._slot.open(path_of(pef_path, "SambaSession(pef_path)"))

    def _start(self) -> None:
        self.buffer_dict: dict[str, SambaTensor] = {}
        self._slot = slot = ProgramSlot(self._book)
        self._names, self._transfers = LoadedNames(slot), Transfers(slot)
        self._graphs = GraphBuilder(slot)
        self._profiling = Profiling(slot, self._runtime_profile)
        self._modes = Modes()

    # -- what is loaded: transfers.py, program_slot.py ---------------------------

    get_weight_names = method_of("_names", LoadedNames.get_weight_names)
    get_section_types = method_of("_names", LoadedNames.get_section_types)
    get_argin_names = method_of("_names", LoadedNames.get_argin_names)
    get_dropout_rate_argin_names = method_of("_names", LoadedNames.get_dropout_rate_argin_names)
    get_dropout_seed_argin_names = method_of("_names", LoadedNames.get_dropout_seed_argin_names)

    @property
    def pef_path(self) -> str:
        """The PEF that was loaded last, or the one to load where none is named."""
        return self._slot.pef_path

    @pef_path.setter
    def pef_path(self, path: str) -> None:
        self._slot.pef_path = path

    @property
    def optim_dict(self) -> dict[str, SambaTensor]:
        """Handles of the optimizer state on the device by name; read them with ``sn_data``."""
        return self._names.optim_dict

    @property
    def output_dict(self) -> dict[str, SambaTensor]:
        """Handles of the outputs by name; read them with ``sn_data``, or fetch them by ``run``."""
        return self._names.output_dict

    @property
    def program(self) -> Program | None:
        """The loaded program, None before ``trace_graph``."""
        return None if self._slot.loaded is None else self._slot.loaded.program

    @property
    def counters(self) -> Counters:
        """How often models were traced, plans compiled, and runs took place, in this session.

        A run that an exception came out of is counted if it took place for all that.

        Example:
            >>> import samba
            >>> samba.SambaSession().counters
            Counters(traces=0, compiles=0, runs=0)
        """
        return self._slot.counters

    def metrics(self) -> Metrics:
        """What this session has done since it was made: compiles, cache, runs, bytes, host time.

        A reset leaves these figures as they are. With the environment variable ``SAMBA_METRICS``
        those of ``samba.session`` are written when the process ends. See ``docs/run.md``.

        Returns:
            The figures: ``str()`` of them is a report, ``as_dict()`` plain data.

        Example:
            >>> import samba
            >>> metrics = samba.SambaSession().metrics()
            >>> metrics.runs, metrics.as_dict()["cache"]["hits"]
            (0, 0)
        """
        return self._book.metrics()

    def _repr_html_(self) -> str | None:
        """What a notebook shows: the loaded program, and what has been done with it."""
        if self._slot.loaded is None:
            return None
        figures, counters = self.metrics(), self.counters
        rows = [("PEF", self.pef_path), ("runs", f"{counters.runs:,}")]
        if figures.size > 1:
            rows.append(("replica", f"rank {figures.rank} of {figures.size}"))
        return drawn(self._slot.loaded.program, rows)

    def memory(self) -> SessionMemory:
        """Memory of the loaded program: what it holds, and what each plan takes.

        Beside the prediction from the program stands what the plan's executable measures. Plans
        are those that have run; those of its evaluators that a script has are among them. See
        ``docs/run.md``.

        Returns:
            The figures: ``str()`` of them is a report, ``as_dict()`` plain data.

        Raises:
            NotLoaded: If nothing is loaded.
        """
        from samba.session.memory import session_memory  # noqa: PLC0415  # loads jax

        return session_memory(self._slot.need("memory()"))

    def need_loaded(self, operation: str) -> Loaded:
        """The loaded program with its device and its host models.

        Args:
            operation: Who asks, for the error.

        Raises:
            NotLoaded: If there is none.
        """
        return self._slot.need(operation)

    # -- between host and device: transfers.py -----------------------------------

    to_cpu = callable_on_class(method_of("_transfers", Transfers.to_cpu))
    to_cpu_ = callable_on_class(method_of("_transfers", Transfers.to_cpu_))
    to_rdu = callable_on_class(method_of("_transfers", Transfers.to_rdu))
    to_device = method_of("_transfers", Transfers.to_device)
    optimizers_to_cpu = method_of("_transfers", Transfers.optimizers_to_cpu)
    optimizers_to_rdu = method_of("_transfers", Transfers.optimizers_to_rdu)
    sync_buffers_to_cpu = callable_on_class(method_of("_transfers", Transfers.sync_buffers_to_cpu))
    sync_buffers_to_rdu = callable_on_class(method_of("_transfers", Transfers.sync_buffers_to_rdu))
    get_tensors = method_of("_transfers", Transfers.get_tensors)
    get_tensors_by_name = method_of("_transfers", Transfers.get_tensors_by_name)
    get_samba_tensor_by_name = method_of("_transfers", Transfers.get_samba_tensor_by_name)
    update_tensor = method_of("_transfers", Transfers.update_tensor)
    _traced_tensors = method_of("_transfers", Transfers.traced_tensors)

    # -- several graphs: multigraph/builder.py ------------------------------------

    trace_part = method_of("_graphs", GraphBuilder.trace_part)
    add_graph = method_of("_graphs", GraphBuilder.add_graph)
    compile_multigraph = method_of("_graphs", GraphBuilder.compile_multigraph)
    init_multigraph_runtime = method_of("_graphs", GraphBuilder.init_multigraph_runtime)

    # -- profiles: profiling.py --------------------------------------------------

    start_samba_profile = method_of("_profiling", Profiling.start_samba_profile)
    end_samba_profile = method_of("_profiling", Profiling.end_samba_profile)
    samba_profile = method_of("_profiling", Profiling.samba_profile)
    start_timeline = method_of("_profiling", Profiling.start_timeline)
    stop_timeline = method_of("_profiling", Profiling.stop_timeline)
    follow = staticmethod(Following.follow)
    stop_following = staticmethod(Following.stop_following)
    start_runtime_profile = method_of("_profiling", Profiling.start_runtime_profile)
    end_runtime_profile = method_of("_profiling", Profiling.end_runtime_profile)

    @property
    def profiler(self) -> Profiler:
        """The profiler of the front end; see :meth:`samba_profile` for its events."""
        return PROFILER

    # -- modes and records: modes.py, lazy_param.py --------------------------------

    enable_lazy_param = staticmethod(enable_lazy_param)
    disable_lazy_param = staticmethod(disable_lazy_param)
    use_lazy_param = staticmethod(use_lazy_param)
    use_legacy_names = staticmethod(Modes.use_legacy_names)
    use_static_functional = staticmethod(Modes.use_static_functional)
    enable_pinned_memory = method_of("_modes", Modes.enable_pinned_memory)
    disable_pinned_memory = method_of("_modes", Modes.disable_pinned_memory)
    use_pinned_memory = method_of("_modes", Modes.use_pinned_memory)
    disable_graphamp = method_of("_modes", Modes.disable_graphamp)
    setup = method_of("_modes", Modes.setup)
    load_dynamic_dims_config = method_of("_modes", Modes.load_dynamic_dims_config)
    create_dynamic_dim = method_of("_modes", Modes.create_dynamic_dim)
    add_aux_tensor = method_of("_modes", Modes.add_aux_tensor)
    is_valid_aux_tensor_name = method_of("_modes", Modes.is_valid_aux_tensor_name)
    atexit_register = method_of("_modes", Modes.atexit_register)
    use_abexit = method_of("_modes", Modes.use_abexit)
    _add_directives = method_of("_modes", Modes.add_directives)

    @property
    def _context_directives(self) -> dict[str, Any]:
        return self._modes.context_directives

    @property
    def tracing(self) -> bool:
        """Whether a model is being traced in this process."""
        return is_tracing()

    @tracing.setter
    def tracing(self, active: bool) -> None:
        set_tracing(flag_of(active, "session.tracing = ..."))

    @property
    def graphamp_disabled(self) -> bool:
        """Whether :meth:`disable_graphamp` is in force."""
        return self._modes.graphamp_disabled

    @property
    def directives(self) -> dict[str, Any]:
        """Wishes for the hardware compiler that scripts have told; they change nothing."""
        return self._modes.directives

    @property
    def dynamic_dims(self) -> dict[str, DimInfo]:
        """Dimensions of varying size that scripts have declared, by their keys."""
        return self._modes.dynamic_dims
