"""SambaTensor's own functions inside ``forward``, traced and run as eager code computes them."""

from __future__ import annotations

import torch
from torch import nn

import samba
import samba.utils as utils
from tests.api.covers import covers
from tests.samba.worlds import close


class Uses(nn.Module):
    """Calls each function on what ``forward`` is given: one trace for all of them."""

    def forward(self, x, other):
        return tuple(function(x, other) for function, _ in FUNCTIONS.values())


def assigned(x, other):
    y = x * 1
    y[:, 1] = other[0, :2]
    y[0] = 2.5
    return y


FUNCTIONS = {
    "torch": (lambda x, o: x.torch() * 2, lambda x, o: x * 2),
    "data": (lambda x, o: x.data * 2, lambda x, o: x * 2),
    "sn_name": (lambda x, o: x * len(x.sn_name), lambda x, o: x * 5),
    "view_as": (lambda x, o: x.view_as(other=o), lambda x, o: x.view(3, 2)),
    "to other": (lambda x, o: x.to(o.double()), lambda x, o: x.double()),
    "to dtype": (lambda x, o: x.to(dtype=torch.bfloat16), lambda x, o: x.bfloat16()),
    "type_as": (lambda x, o: x.type_as(tensor=o.int()), lambda x, o: x.int()),
    "new_zeros": (
        lambda x, o: x + x.new_zeros(size=[2, 3], dtype=torch.float32, requires_grad=False),
        lambda x, o: x + 0,
    ),
    "new_ones": (lambda x, o: x + x.new_ones((2, 3), torch.float32), lambda x, o: x + 1),
    "new_full": (
        lambda x, o: x + x.new_full((2, 3), 5.0, dtype=torch.float32, device="cpu"),
        lambda x, o: x + 5,
    ),
    "new_empty": (lambda x, o: x + x.new_empty((2, 3)) * 0, lambda x, o: x + 0),
    "__setitem__": (assigned, assigned),
    "__getitem__": (
        lambda x, o: x[None, :, [0, 2]],
        lambda x, o: x[None, :, [0, 2]],
    ),
    "ones": (lambda x, o: x + samba.ones(2, 3), lambda x, o: x + 1),
    "from_torch_tensor": (
        lambda x, o: x + samba.from_torch_tensor(torch.full((2, 3), 3.0)),
        lambda x, o: x + 3,
    ),
    "to_torch": (lambda x, o: samba.to_torch(x) * 2, lambda x, o: x * 2),
}


@covers(
    "samba.SambaTensor.torch",
    ".data",
    ".sn_name",
    ".view_as",
    ".to",
    ".new_zeros",
    ".new_ones",
    ".new_full",
    ".new_empty",
    ".__setitem__",
    ".__getitem__",
    "samba.from_torch_tensor",
)
def test_the_device_computes_what_forward_says(tmp_path):
    x = samba.from_torch_tensor(torch.arange(6.0).reshape(2, 3), name="image")
    other = samba.from_torch_tensor(torch.arange(6.0).reshape(3, 2) / 4, name="other")
    model = Uses()
    pef = samba.session.compile(
        model, (x, other), inference=True, config_dict={"output_folder": str(tmp_path)}
    )
    outputs = utils.trace_graph(model, (x, other), pef=pef)
    found = samba.session.run((x, other), outputs)
    for (name, (_, plain)), out in zip(FUNCTIONS.items(), found, strict=True):
        want = plain(x.torch(), other.torch())
        assert out.dtype is want.dtype, name
        close(out.data, want, name)
