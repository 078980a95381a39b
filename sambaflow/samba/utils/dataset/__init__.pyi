from samba.utils.dataset import (
    mnist as mnist,
)
