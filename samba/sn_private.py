"""Parallel patterns under the path that later scripts import them from."""

from samba.functional.stir import *  # noqa: F403  # what `samba.functional.stir.__all__` lists
from samba.functional.stir import __all__ as __all__
