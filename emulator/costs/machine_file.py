"""Machines as TOML, which people write for a chip and the estimate reads.

::

    name = "my chip"
    float32_gflops = 100.0
    bandwidth_gb_s = 20.0

    [[cache]]
    size_mb = 1.0
    bandwidth_gb_s = 80.0

Rates are in 10^9 operations or bytes a second, sizes in 10^6 bytes. Of the keys, ``bandwidth_gb_s``
is needed; a rate is, of each type that the program multiplies.
"""

from __future__ import annotations

import difflib
import errno
import os
import stat
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from emulator.costs.roofline import Cache, Machine, is_rate
from emulator.errors import DeviceError
from pef_schema.errors import quoted
from pef_schema.program import DType

_MOST = 1 << 20
"""Bytes of a file that is still read."""
_GIGA, _MEGA = 1e9, 1e6
_NAME, _BANDWIDTH, _CACHE, _SIZE = "name", "bandwidth_gb_s", "cache", "size_mb"
_RATES: Mapping[str, DType] = {f"{d.name.lower()}_gflops": d for d in DType if d is not DType.BOOL}
_KEYS = (_NAME, _BANDWIDTH, _CACHE, *_RATES)
_CACHE_KEYS = (_SIZE, _BANDWIDTH)
_NEEDED = f"a file with {_BANDWIDTH} and rates such as float32_gflops"


class BadMachineFile(DeviceError):
    """A file that describes no machine.

    Attributes:
        path: The file.
        problems: All that is wrong with it.
    """

    def __init__(self, *, path: str, problems: Sequence[str]) -> None:
        self.path, self.problems = path, tuple(problems)
        lines = (
            f" {self.problems[0]}"
            if len(self.problems) == 1
            else "".join(f"\n  {problem}" for problem in self.problems)
        )
        super().__init__(
            f"machine file {quoted(path, 1024)}:{lines}\ndocs/cost.md shows what it holds; "
            "--machine this --save FILE writes one of this machine."
        )


def read_machine(path: str) -> Machine:
    """Read a machine from a file.

    Args:
        path: The file.

    Returns:
        The machine; its name is the file's where the file gives none.

    Raises:
        BadMachineFile: If it cannot be read, is not valid TOML, or does not describe a machine.
    """
    text = _text(path)
    return parsed_machine(text, path)


def parsed_machine(text: str, path: str) -> Machine:
    """A machine from TOML.

    Args:
        text: The TOML.
        path: Where it comes from, for errors and for a machine without a name.

    Raises:
        BadMachineFile: If it is something else, with all that is wrong.

    Example:
        >>> machine = parsed_machine("float32_gflops = 2.0\\nbandwidth_gb_s = 0.5", "chip.toml")
        >>> machine.name, machine.rate(DType.FLOAT32), machine.bandwidth
        ('chip.toml', 2000000000.0, 500000000.0)
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _bad(path, f"is not valid TOML: {error}. Expected {_NEEDED}.") from None
    except RecursionError:
        raise _bad(path, f"is nested too deeply. Expected {_NEEDED}.") from None
    problems = _unknown_keys(table, _KEYS, "")
    name = table.get(_NAME, os.path.basename(path))
    if not isinstance(name, str):
        problems.append(f"{_NAME}: found {quoted(name)}, expected a string")
        name = ""
    rates = {
        dtype: _number(table[key], key, problems) * _GIGA
        for key, dtype in _RATES.items()
        if key in table
    }
    if not rates:
        problems.append("no rate of products: expected float32_gflops or that of another type")
    bandwidth = _need_number(table, _BANDWIDTH, "", problems) * _GIGA
    caches = _caches(table.get(_CACHE, []), problems)
    if problems:
        raise BadMachineFile(path=path, problems=problems)
    return Machine(name=name, rates=tuple(rates.items()), bandwidth=bandwidth, caches=caches)


def machine_toml(machine: Machine) -> str:
    """A machine as TOML, as :func:`parsed_machine` reads it.

    Args:
        machine: The machine.

    Example:
        >>> machine = Machine(
        ...     name="m", rates=((DType.FLOAT32, 2e9),), bandwidth=5e8,
        ...     caches=(Cache(nbytes=1e6, bandwidth=2e9),),
        ... )
        >>> parsed_machine(machine_toml(machine), "m") == machine
        True
    """
    lines = [f"{_NAME} = {_toml_text(machine.name)}"]
    lines += [f"{d.name.lower()}_gflops = {float(r / _GIGA)!r}" for d, r in machine.rates]
    lines.append(f"{_BANDWIDTH} = {float(machine.bandwidth / _GIGA)!r}")
    for cache in machine.caches:
        lines += [
            "",
            f"[[{_CACHE}]]",
            f"{_SIZE} = {float(cache.nbytes / _MEGA)!r}",
            f"{_BANDWIDTH} = {float(cache.bandwidth / _GIGA)!r}",
        ]
    return "\n".join(lines) + "\n"


def _toml_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    visible = "".join(
        c if c.isprintable() else f"\\u{ord(c):04x}" if ord(c) < 1 << 16 else f"\\U{ord(c):08x}"
        for c in escaped
    )
    return f'"{visible}"'


def _text(path: str) -> str:
    try:
        # Opening a pipe must not wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _bad(path, f"is a folder, a pipe or a device. Expected {_NEEDED}.")
            data = file.read(_MOST + 1)
    except IsADirectoryError:
        raise _bad(path, f"is a folder. Expected {_NEEDED}.") from None
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise _bad(path, f"there is no such file. Expected 'this', or {_NEEDED}.") from None
        raise _bad(path, f"cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise _bad(path, f"is not a path: {error}.") from None
    if len(data) > _MOST:
        raise _bad(path, f"has more than {_MOST} bytes. Expected {_NEEDED}.")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _bad(path, f"is not UTF-8 text (byte {error.start}). Expected {_NEEDED}.") from None


def _bad(path: str, problem: str) -> BadMachineFile:
    return BadMachineFile(path=path, problems=[problem])


def _unknown_keys(table: Mapping[str, Any], keys: Sequence[str], where: str) -> list[str]:
    problems: list[str] = []
    for key in table:
        if key not in keys:
            close = difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]}?" if close else f"the keys are {', '.join(keys)}"
            problems.append(f"{where}{quoted(key)}: no such key; {hint}")
    return problems


def _need_number(table: Mapping[str, Any], key: str, where: str, problems: list[str]) -> float:
    if key not in table:
        problems.append(f"{where}{key}: missing")
        return 1.0
    return _number(table[key], where + key, problems)


def _number(value: Any, key: str, problems: list[str]) -> float:
    """A rate or a size; any other value becomes a problem."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            if is_rate(value) and is_rate(float(value) * _GIGA):
                return float(value)
        except OverflowError:
            pass
    problems.append(f"{key}: found {quoted(value)}, expected a number above 0")
    return 1.0


def _caches(entries: Any, problems: list[str]) -> tuple[Cache, ...]:
    if not isinstance(entries, list):
        problems.append(f"{_CACHE}: found {quoted(entries)}, expected tables: [[{_CACHE}]]")
        return ()
    caches: list[Cache] = []
    for number, entry in enumerate(cast("list[Any]", entries)):
        where = f"{_CACHE}[{number}]."
        if not isinstance(entry, dict):
            problems.append(f"{where[:-1]}: found {quoted(entry)}, expected a table: [[{_CACHE}]]")
            continue
        table = cast("dict[str, Any]", entry)
        problems += _unknown_keys(table, _CACHE_KEYS, where)
        caches.append(
            Cache(
                nbytes=_need_number(table, _SIZE, where, problems) * _MEGA,
                bandwidth=_need_number(table, _BANDWIDTH, where, problems) * _GIGA,
            )
        )
    return tuple(caches)
