from samba.utils.trainer.samba import (
    train as train,
)
