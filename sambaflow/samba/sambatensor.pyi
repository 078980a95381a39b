from samba.sambatensor import (
    DimInfo as DimInfo,
    Materializer as Materializer,
    SambaTensor as SambaTensor,
    from_torch_tensor as from_torch_tensor,
    to_torch as to_torch,
)
