from samba.utils.trainer.torch import (
    train as train,
)
