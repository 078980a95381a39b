"""The logger of the front end."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import MutableMapping
from typing import Any

__all__ = ["SambaLogger", "samba_logger"]


class SambaLogger(logging.LoggerAdapter[logging.Logger]):
    """A standard logger that can limit how often it repeats a message.

    Every method of ``logging.Logger`` works; each takes ``log_limit=n`` besides
    and then drops the message once it was logged ``n`` times.

    Example:
        >>> log = SambaLogger(logging.getLogger("doctest"))
        >>> for _ in range(3):
        ...     log.warning("said once", log_limit=1)
    """

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger, {})
        self._seen: Counter[tuple[int, str]] = Counter()

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Return message and keywords as they are; ``extra`` stays the caller's."""
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a message.

        Args:
            level: Level of the standard library's ``logging``.
            msg: Format string; ``args`` are merged into it with ``%``.
            kwargs: As for ``logging.Logger.log``; besides, ``log_limit`` is the
                largest number of times this message (before merging) is logged
                at this level.
        """
        log_limit: int | None = kwargs.pop("log_limit", None)
        if not self.isEnabledFor(level):
            return
        if log_limit is not None:
            key = (level, str(msg))
            if self._seen[key] >= log_limit:
                return
            self._seen[key] += 1
        # One frame more than the standard adapter: this method.
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        super().log(level, msg, *args, **kwargs)


samba_logger = SambaLogger(logging.getLogger("samba"))
"""What scripts import as ``from sambaflow.logging import samba_logger``."""
