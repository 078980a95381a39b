"""Switches of a session, and wishes that are only recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from pef_schema.errors import quoted
from samba.abexit import SambaAtexit
from samba.argconf.parsed import configure
from samba.errors import ArgumentError, literal
from samba.sambatensor import DimInfo, SambaTensor
from samba.support.deviations import tell
from samba.support.given import flag_of, mapping_of, whole_of
from samba.support.marks import marked
from samba.support.strict_json import parse_json
from samba.support.tracing import NO_GRAPHAMP, is_tracing, is_tracing_again, register_told
from samba.tensor.lazy_mode import current_mode
from samba.tracer.torch_internals import FakeTensor


class ConfigUnreadable(ArgumentError):
    """A file with settings cannot be read, or is not of its form."""


class Modes:
    """Switches of a session, what scripts only tell it, and handlers for the end of the process."""

    def __init__(self) -> None:
        self._pinned = False
        self._graphamp_off = 0
        self._aux: dict[str, SambaTensor] = {}
        self.directives: dict[str, Any] = {}
        self.context_directives: dict[str, Any] = {}
        self.dynamic_dims: dict[str, DimInfo] = {}
        register_told(self)

    def enable_pinned_memory(self) -> None:
        """Record that pinned memory is wanted; host and device share memory here anyway."""
        self._pinned = True

    def disable_pinned_memory(self) -> None:
        """Record that pinned memory is not wanted."""
        self._pinned = False

    def use_pinned_memory(self) -> bool:
        """Whether pinned memory is wanted."""
        return self._pinned

    @staticmethod
    def use_static_functional() -> bool:
        """Whether a model is being traced, or parameters are made lazily.

        Operations on tensors without values then give tensors without values: they are computed
        when they are needed.
        """
        return is_tracing() or current_mode() is not None

    @staticmethod
    def use_legacy_names(use: bool) -> None:
        """Accept a wish for older names of operations; there are none, and a warning says so.

        Args:
            use: The wish.
        """
        if flag_of(use, "session.use_legacy_names(use)"):
            tell(
                "legacy-names",
                "use_legacy_names(True) has no effect: operations keep their usual names",
            )

    @contextmanager
    def disable_graphamp(self) -> Iterator[None]:
        """Exempt what ``forward`` computes inside from GraphAMP.

        Where a compile asks for it (``--graphamp-preset``), operations outside take their inputs
        down to bfloat16 and those inside do not. Inputs that were rounded before stay so.
        """
        self._graphamp_off += 1
        try:
            with marked(NO_GRAPHAMP):
                yield
        finally:
            self._graphamp_off -= 1

    @property
    def graphamp_disabled(self) -> bool:
        """Whether :meth:`disable_graphamp` is in force."""
        return self._graphamp_off > 0

    # -- configuration ------------------------------------------------------

    def setup(self, args: Any) -> None:
        """Configure compile and run as a parsed command line would.

        Args:
            args: A pydantic model such as ``samba.argconf.args.CompileArgs``, or any mapping or
                object with the fields of the command line. Nested ``samba_compile`` and
                ``samba_run`` are flattened.

        Raises:
            ArgumentError: It is none of these.
        """
        configure(fields_of(args))

    def load_dynamic_dims_config(self, config: Mapping[str, Any] | str | PathLike[str]) -> None:
        """Declare dimensions of varying size.

        They are recorded only: shapes are those that a model is traced with.

        Args:
            config: ``{name: {"min": ..., "max": ..., "factor": ...}}``, or a JSON file of it.

        Raises:
            ConfigUnreadable: The file cannot be read, or is not valid JSON.
            ArgumentError: It says something else than ranges, or a range is not one. Nothing is
                declared then.
        """
        for name, limits in _ranges(config).items():
            self.create_dynamic_dim(name, **limits)

    def create_dynamic_dim(self, name: str, min: int, max: int, factor: int = 1) -> str:
        """Declare one dimension of varying size; see :meth:`load_dynamic_dims_config`.

        Args:
            name: Its name.
            min, max: Smallest and largest size.
            factor: Step between sizes.

        Returns:
            The key under which it is found in ``dynamic_dims``.

        Raises:
            ArgumentError: The range is not one.

        Example:
            >>> import samba
            >>> samba.session.create_dynamic_dim("seq", 128, 4096, 128)
            'seq_min_128_max_4096_factor_128'
        """
        where = f"session.create_dynamic_dim({name!r})"
        for what, value in (("min", min), ("max", max), ("factor", factor)):
            whole_of(value, f"{where}, {what}")
        _check_range(where, min, max, factor)
        key = f"{name}_min_{min}_max_{max}_factor_{factor}"
        self.dynamic_dims[key] = DimInfo(min, max, factor)
        return key

    def add_directives(self, directives: Mapping[str, Any] | None) -> AbstractContextManager[None]:
        """Record wishes for the hardware compiler; they change no result.

        Args:
            directives: Wishes by name; None for none.

        Returns:
            A context manager: inside, they are in force, before those of contexts around it.
        """
        given = mapping_of(
            directives or {}, "session._add_directives(directives)", "a dict of wishes"
        )
        self.directives.update(given)
        return self._in_force(given)

    @contextmanager
    def _in_force(self, directives: Mapping[str, Any]) -> Iterator[None]:
        outer = self.context_directives
        self.context_directives = {**outer, **directives}
        try:
            yield
        finally:
            self.context_directives = outer

    # -- further tensors ----------------------------------------------------

    def add_aux_tensor(self, tensor: SambaTensor, name: str) -> None:
        """Keep a host tensor under a name of its own.

        Args:
            tensor: The tensor; once more under its name changes nothing, as where ``forward`` of a
                model that is traced for several graphs adds it. A tensor that one trace has made
                gives its name to one of the same shape and dtype from a later trace: that is the
                same constant, made again for another graph.
            name: A name that :meth:`is_valid_aux_tensor_name` accepts.

        Raises:
            ArgumentError: The name is empty, or another tensor has it.
        """
        other = self._aux.get(name)
        if other is not None and (is_tracing_again() or other is tensor):
            return
        if not self.is_valid_aux_tensor_name(name) and not _is_made_anew(other, tensor):
            raise ArgumentError(
                where="session.add_aux_tensor(name)",
                found=repr(name),
                wanted="a name that is not empty and that no other tensor has",
            )
        self._aux[name] = tensor

    def is_valid_aux_tensor_name(self, name: str) -> bool:
        """Whether an auxiliary tensor may have this name: no other has it."""
        return bool(name) and (is_tracing_again() or name not in self._aux)

    # -- end of the process -------------------------------------------------

    def atexit_register(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Register an exit handler that runs however the program ends.

        Args:
            func: What to call, with ``args`` and ``kwargs``; handlers run last first.
        """
        SambaAtexit.register(func, *args, **kwargs)

    def use_abexit(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Run a function; if it fails, end the process at once.

        Peers of a data parallel run then see it gone and do not wait for it. Handlers of
        :func:`atexit.register` do not run in that case; those of :meth:`atexit_register` do.

        Args:
            func: What to run, with ``args`` and ``kwargs``; often ``main``.
        """
        SambaAtexit.run_with_abexit(func, *args, **kwargs)


def _is_made_anew(first: Any, tensor: Any) -> bool:
    """Whether two tensors are of two traces, and alike."""
    return (
        isinstance(first, FakeTensor)
        and isinstance(tensor, FakeTensor)
        and first.fake_mode is not tensor.fake_mode
        and (first.shape, first.dtype) == (tensor.shape, tensor.dtype)
    )


_LIMITS = frozenset({"min", "max", "factor"})


def _ranges(config: Mapping[str, Any] | str | PathLike[str]) -> dict[str, dict[str, int]]:
    """Ranges of dimensions by name, checked."""
    where = "session.load_dynamic_dims_config(config)"
    content: Any = config
    if not isinstance(config, Mapping):
        where = f"{where}, file {quoted(fspath(config))}"
        try:
            content = parse_json(Path(config).read_bytes())
        except (OSError, ValueError) as error:
            text = error.strerror if isinstance(error, OSError) else f"not JSON ({error})"
            raise ConfigUnreadable(
                where=where,
                found=text or str(error),
                wanted='a JSON file of {"name": {"min": 1, "max": 8, "factor": 1}}',
            ) from error
    ranges = content if isinstance(content, Mapping) else {"": content}
    for name, limits in ranges.items():
        keys = set(limits) if isinstance(limits, Mapping) else set()
        whole = keys and all(type(value) is int for value in limits.values())
        if not (name and whole and keys <= _LIMITS and {"min", "max"} <= keys):
            raise ArgumentError(
                where=where,
                found=f"{quoted(name)}: {literal(limits)}" if name else literal(limits),
                wanted="for each dimension whole numbers min and max, and perhaps factor",
            )
    for name, limits in ranges.items():
        _check_range(f"{where}, dimension {quoted(name)}", **limits)
    return {name: dict(limits) for name, limits in ranges.items()}


def _check_range(where: str, min: int, max: int, factor: int = 1) -> None:
    if not 1 <= min <= max or factor < 1:
        raise ArgumentError(
            where=where,
            found=f"min {min}, max {max}, factor {factor}",
            wanted="1 <= min <= max and a factor of 1 or more",
        )


def fields_of(args: Any) -> dict[str, Any]:
    """Fields of a configuration object by name, ``samba_compile`` and ``samba_run`` flattened.

    Raises:
        ArgumentError: It has no fields.
    """
    if isinstance(args, Mapping):
        fields = dict(args)
    elif hasattr(args, "model_dump"):
        fields = dict(args.model_dump())
    elif hasattr(args, "__dict__"):
        fields = dict(vars(args))
    else:
        raise ArgumentError(
            where="session.setup(args)",
            found=type(args).__name__,
            wanted="a pydantic model, a mapping or an object with fields",
        )
    command = str(fields.get("command") or "")
    for part in ("samba_compile", "samba_run"):
        nested = fields.pop(part, None)
        if nested is not None and (not command or part.endswith(command)):
            fields |= fields_of(nested)
    return fields
