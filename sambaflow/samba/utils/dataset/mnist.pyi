from samba.utils.dataset.mnist import (
    IdxError as IdxError,
    IdxUnreadable as IdxUnreadable,
    Mnist as Mnist,
    dataset_transform as dataset_transform,
    prepare_dataloader as prepare_dataloader,
    read_idx as read_idx,
)
