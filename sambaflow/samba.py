"""Becomes the package ``samba`` when imported.

What this leaves behind is an entry in ``sys.meta_path`` that answers
for names below ``sambaflow.samba`` and for no others, and, where torch has no MPI, the meaning of
``torch.distributed.init_process_group("mpi")``, see :mod:`samba.distributed.mpi`.
"""

from __future__ import annotations

from samba.support.alias import alias_package

if __name__ == "__main__":  # python -m sambaflow.samba
    import sys

    from samba.__main__ import main

    sys.exit(main())

alias_package(alias=__name__, real="samba")

from samba.distributed.mpi import provide_mpi  # noqa: E402  # the alias comes first

provide_mpi()
