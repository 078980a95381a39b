"""Where this project does something else than torch or the documented API: said by name.

``docs/deviations.md`` has a row for each name, and a test holds code and page together. A warning
names its deviation by :func:`tell` or :meth:`Deviations.tell`; an error that refuses what torch or
a page allows has an attribute or an argument ``deviation``.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pef_schema.printable import printable

MOST_TOLD = 32
"""Texts that are told of one deviation: a loop of a script may find ever new ones."""

_log = logging.getLogger("samba")
_heard: ContextVar[list[tuple[str, str]] | None] = ContextVar("heard", default=None)
_muted: ContextVar[bool] = ContextVar("muted", default=False)


def named(deviation: str, text: str) -> str:
    """A message with the name under which the page explains it.

    Args:
        deviation: Name of a row of the page.
        text: What differs and what to do; without a full stop.

    Example:
        >>> named("zero-output", "output y is zeros: nothing has computed it")
        'output y is zeros: nothing has computed it [deviation: zero-output]'
    """
    return printable(f"{text} [deviation: {deviation}]")


def tell(deviation: str, text: str) -> None:
    """Log a deviation as a warning.

    Args:
        deviation: Name of a row of the page, as a literal.
        text: What differs and what to do; without a full stop.
    """
    heard = _heard.get()
    if heard is not None:
        heard.append((deviation, text))
    if not _muted.get():
        _log.warning("%s", named(deviation, text))


@contextmanager
def hearing(*, muted: bool = False) -> Iterator[list[tuple[str, str]]]:
    """While active, what is told is listed, too: names of deviations with their texts.

    Args:
        muted: Whether it is listed only, for somebody who asks what would be told.

    Example:
        >>> with hearing() as deviations:
        ...     pass
        >>> deviations
        []
    """
    deviations: list[tuple[str, str]] = []
    before, loud = _heard.set(deviations), _muted.set(muted or _muted.get())
    try:
        yield deviations
    finally:
        _heard.reset(before)
        _muted.reset(loud)


class Deviations:
    """Says each deviation once for what it belongs to, such as a loaded program.

    What was said is kept, so it is bounded: :data:`MOST_TOLD` texts of each deviation, the last
    with the remark that further ones are not told.
    """

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: dict[str, set[str]] = {}

    def tell(self, deviation: str, text: str) -> None:
        """Log a deviation as a warning, unless the same text was logged before.

        Args:
            deviation: Name of a row of the page, as a literal.
            text: What differs and what to do; without a full stop.
        """
        texts = self._told.setdefault(deviation, set())
        if text in texts or len(texts) >= MOST_TOLD:
            return
        texts.add(text)
        last = "; further cases of this are not told" if len(texts) == MOST_TOLD else ""
        tell(deviation, text + last)

    def has_told(self, deviation: str) -> bool:
        """Whether a deviation was said.

        Args:
            deviation: Name of a row of the page.
        """
        return deviation in self._told


_of: weakref.WeakKeyDictionary[Any, Deviations] = weakref.WeakKeyDictionary()


def deviations_of(owner: Any) -> Deviations:
    """What was told of a model: a compile and the load that follows it trace it several times.

    Args:
        owner: The model.
    """
    return _of.setdefault(owner, Deviations())
