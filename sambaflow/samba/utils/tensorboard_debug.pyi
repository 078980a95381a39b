from samba.utils.tensorboard_debug import (
    dump_accuracy_debug_info as dump_accuracy_debug_info,
)
