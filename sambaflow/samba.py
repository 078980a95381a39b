"""Becomes the package ``samba`` when imported.

The one thing this leaves behind is an entry in ``sys.meta_path`` that answers
for names below ``sambaflow.samba`` and for no others.
"""

from __future__ import annotations

from sambaflow._alias import alias_package

if __name__ == "__main__":  # python -m sambaflow.samba
    import sys

    from samba.__main__ import main

    sys.exit(main())

alias_package(alias=__name__, real="samba")
