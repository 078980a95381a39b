from samba.nn.conversion import (
    from_named_dict as from_named_dict,
    from_torch as from_torch,
    from_torch_ as from_torch_,
    from_torch_model as from_torch_model,
    from_torch_model_ as from_torch_model_,
    patched_torch as patched_torch,
    to_torch_tensor as to_torch_tensor,
)
