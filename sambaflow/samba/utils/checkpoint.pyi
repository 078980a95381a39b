from samba.utils.checkpoint import (
    BadCheckpoint as BadCheckpoint,
    LoadResult as LoadResult,
    load_sharded_checkpoint as load_sharded_checkpoint,
    save_checkpoint as save_checkpoint,
)
