"""SambaFlow's front end: traces torch models, compiles them to PEFs and runs their sections."""

from samba.support.torch_commands import needs_no_torch

# `python -m samba inspect` and its like load neither torch nor jax, and no help text does.
if not needs_no_torch():
    from pef_schema.garbage import SELDOM_COLLECTED as _SELDOM_COLLECTED

    with _SELDOM_COLLECTED:
        import torch as _torch

        from emulator.versions import TORCH as _TORCH

        _TORCH.check(_torch.__version__)  # before a private name of torch can be missed

        from samba.surface import *  # noqa: F403  # what `samba.surface.__all__` lists
        from samba.surface import __all__ as __all__
        from samba.version import __version__ as __version__
