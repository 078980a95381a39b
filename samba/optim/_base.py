"""The part that every samba optimizer adds to its torch class."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from samba.errors import ArgumentError, NotLoaded, described
from samba.support.given import as_number, flag_of, text_of
from samba.support.late_compiler import late_compiler
from samba.tensor.device_memory import DeviceTensors, visible_memory

_SETTINGS = ("argin_region_name", "max_grad_norm", "fp32_params")


class DeviceSettings(torch.optim.Optimizer):
    """Settings that the compiler reads, and an eager step on plain tensors.

    They are attributes of the optimizer, not of its groups, so that ``state_dict()`` is the one
    of the torch class and either loads the other's.

    Attributes:
        argin_region_name: Prefix of the names of this optimizer's hyperparameters.
        max_grad_norm: Largest 2-norm of the gradients of this optimizer's parameters, of all groups
            together; other optimizers are clipped on their own. None to leave them alone.
        fp32_params: Whether a float32 copy of its parameters is wished for. The device keeps none,
            which a warning says where parameters have fewer bits.
    """

    argin_region_name: str = ""
    max_grad_norm: float | None = None
    fp32_params: bool = False

    def _begin(self, arguments: dict[str, Any]) -> None:
        """Start from the arguments of ``__init__``: those of torch's class, and the settings here.

        Args:
            arguments: What ``locals()`` gives there.
        """
        settings = {name: arguments[name] for name in _SETTINGS if name in arguments}
        rest = {n: v for n, v in arguments.items() if n not in (*_SETTINGS, "self", "__class__")}
        with late_compiler():
            super().__init__(**rest)
        where = f"samba.optim.{type(self).__name__}"
        largest = settings.get("max_grad_norm")
        if largest is not None and not 0.0 < as_number(largest) < math.inf:
            raise ArgumentError(
                where=f"{where}(max_grad_norm=...)",
                found=described(largest),
                wanted="a positive finite number, or None for no clipping",
            )
        if settings["argin_region_name"] is not None:
            text_of(settings["argin_region_name"], f"{where}(argin_region_name=...)")
        flag_of(settings.get("fp32_params", False), f"{where}(fp32_params=...)")
        vars(self).update(settings)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group, as torch's optimizers do.

        Args:
            param_group: Its parameters and options.
        """
        with late_compiler():
            super().add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Resets the gradients of all parameters on the host.

        Args:
            set_to_none: Whether to None, else to zeros.
        """
        with late_compiler():
            super().zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The state on the host, as torch's optimizers give it."""
        with late_compiler():
            return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the state on the host from a dict, as torch's optimizers do.

        Args:
            state_dict: What :meth:`state_dict` gave.
        """
        with late_compiler():
            super().load_state_dict(state_dict)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters on the host, after clipping if ``max_grad_norm`` is set.

        Args:
            closure: Computes the loss and the gradients again; called before clipping.

        Returns:
            What ``closure`` returns, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch._C.DisableTorchFunctionSubclass():
            if self.max_grad_norm is not None:
                parameters = [p for group in self.param_groups for p in group["params"]]
                torch.nn.utils.clip_grad_norm_(parameters, self.max_grad_norm)
            step = super().step
            # torch wraps a class's step with the step hooks when it is first used; ours is
            # wrapped already, so the hooks of this optimizer would run twice.
            if getattr(step, "hooked", False):
                step = step.__wrapped__.__get__(self)  # pyright: ignore[reportAttributeAccessIssue]  # set by functools.wraps
            step()
        return loss

    def cpu(self) -> None:
        """Copies its state, such as momentum, from the device to the host.

        Raises:
            SambaError: Nothing is traced, or the device does not run this optimizer.
        """
        _loaded("optimizers_to_cpu()").optimizers_to_cpu(self)

    def rdu(self) -> None:
        """Copies its state from the host to the device.

        Raises:
            SambaError: Nothing is traced, or the device does not run this optimizer.
        """
        _loaded("optimizers_to_rdu()").optimizers_to_rdu(self)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {name: getattr(self, name) for name in _SETTINGS}


def _loaded(operation: str) -> DeviceTensors:
    memory = visible_memory()
    if memory is None:
        raise NotLoaded(operation=operation)
    return memory
