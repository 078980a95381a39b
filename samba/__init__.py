"""SambaFlow's front end: torch models traced, compiled to a PEF and run section by section."""

from samba.support.file_commands import is_file_command

# `python -m samba inspect` and its like read a file and load neither torch nor jax.
if not is_file_command():
    from samba.surface import *  # noqa: F403  # what `samba.surface.__all__` lists
    from samba.surface import __all__ as __all__
    from samba.version import __version__ as __version__
