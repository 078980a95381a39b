from samba.utils.common import (
    common_app_driver as common_app_driver,
)
