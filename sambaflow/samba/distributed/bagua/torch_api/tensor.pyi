from samba.distributed.bagua.torch_api.tensor import (
    BaguaTensor as BaguaTensor,
)
