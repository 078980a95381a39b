"""``bagua.torch_api.tensor``: importing it gives ``torch.Tensor`` the methods of Bagua tensors.

As upstream's module of that name does. Nothing else in this project imports it, so that a process
in which no script asks for it has torch's own class; ``disable_bagua_tensors()`` takes the methods
away again. The top-level name ``bagua`` is left to Bagua's own package::

    import sambaflow.samba.distributed.bagua.torch_api.tensor

    parameter.ensure_bagua_tensor("weight", getter_closure=lambda parameter: parameter.grad)
"""

from samba.tensor.bagua import BaguaTensor, enable_bagua_tensors

__all__ = ["BaguaTensor"]

enable_bagua_tensors()
