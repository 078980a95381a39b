"""SNConfig: the configuration of a machine, of which there is none here."""

from __future__ import annotations

from typing import Any

__all__ = ["SNConfig"]


class SNConfig:
    """Configuration that scripts name in ``SambaConfig(args, SNConfig)``; keeps what it is given.

    Args:
        **settings: Settings by name.

    Example:
        >>> SNConfig(arch="sn30").settings
        {'arch': 'sn30'}
    """

    def __init__(self, **settings: Any) -> None:
        self.settings = dict(settings)
