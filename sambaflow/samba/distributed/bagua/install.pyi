from samba.distributed.bagua.install import (
    install as install,
    uninstall as uninstall,
)
