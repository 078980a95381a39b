"""Times, rates and counts as people write them on a command line."""

from __future__ import annotations

import argparse
import math
import re

__all__ = ["bytes_per_second", "counts", "seconds"]

_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_RATES = {
    **{f"{prefix}B/s": factor for prefix, factor in (("k", 1e3), ("M", 1e6), ("G", 1e9))},
    **{f"{prefix}bit/s": factor / 8 for prefix, factor in (("M", 1e6), ("G", 1e9))},
}
_NUMBER = re.compile(r"([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*(.*)", re.IGNORECASE | re.ASCII)


def seconds(text: str) -> float:
    """A time with its unit.

    Args:
        text: A number and ``s``, ``ms``, ``us`` or ``ns``; 0 needs no unit.

    Returns:
        Seconds.

    Raises:
        argparse.ArgumentTypeError: If it is none.

    Example:
        >>> seconds("20us"), seconds("1.5 ms"), seconds("0")
        (2e-05, 0.0015, 0.0)
    """
    number, unit = _parts(text)
    if number == 0 and not unit:
        return 0.0
    if number is None or unit not in _PER_SECOND:
        raise argparse.ArgumentTypeError(
            f"found {text!r}, wanted a time with its unit ({', '.join(_PER_SECOND)}), e.g. 20us"
        )
    return number / _PER_SECOND[unit]


def bytes_per_second(text: str) -> float:
    """A bandwidth with its unit; prefixes are powers of 1000.

    Args:
        text: A number and ``kB/s``, ``MB/s``, ``GB/s``, ``Mbit/s`` or ``Gbit/s``.

    Returns:
        Bytes a second, above 0.

    Raises:
        argparse.ArgumentTypeError: If it is none.

    Example:
        >>> bytes_per_second("10GB/s"), bytes_per_second("100 Gbit/s")
        (10000000000.0, 12500000000.0)
    """
    number, unit = _parts(text)
    if not number or unit not in _RATES:
        raise argparse.ArgumentTypeError(
            f"found {text!r}, wanted a bandwidth above 0 with its unit ({', '.join(_RATES)}), "
            "e.g. 10GB/s"
        )
    return number * _RATES[unit]


def counts(text: str) -> tuple[int, ...]:
    """Counts with commas between them.

    Args:
        text: Whole numbers above 0.

    Returns:
        Each once, the smallest first.

    Raises:
        argparse.ArgumentTypeError: If one is no such number.

    Example:
        >>> counts("8,512,64,8")
        (8, 64, 512)
    """
    found: set[int] = set()
    for part in text.split(","):
        number = part.strip()
        if not (number.isascii() and number.isdecimal() and len(number) <= 7 and int(number)):
            raise argparse.ArgumentTypeError(
                f"found {part!r}, wanted counts from 1 to 9,999,999 with commas between them, "
                "e.g. 8,64,512"
            )
        found.add(int(number))
    return tuple(sorted(found))


def _parts(text: str) -> tuple[float | None, str]:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or not math.isfinite(float(match[1])):
        return None, ""
    return float(match[1]), match[2]
