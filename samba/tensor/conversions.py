"""Casts, ``new_*`` and indices of a SambaTensor, with the arguments that SambaFlow documents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self, cast

import torch
from torch import Tensor

from samba.errors import ConversionError, UnsupportedKeyword, described
from samba.support.given import flag_of

if TYPE_CHECKING:
    _Base = Tensor
else:
    _Base = object

# Inside the class ``type`` is a method, so annotations there need other names.
DType = torch.dtype
Size = int | Iterable[int]


class Conversions(_Base):
    """The part of SambaTensor that gives tensors of another type, or of another shape."""

    __slots__ = ()

    def new_empty(self, size: Size, *args: Any, **kwargs: Any) -> Self:
        """Makes a SambaTensor of uninitialised values.

        Args:
            size: Sizes of the result, as numbers or as one iterable of numbers.
            dtype: Element type, that of this tensor if None.
            requires_grad: Whether autograd records what is done with it.
            device: Has no effect: SambaTensors live on the host.

        Example:
            >>> import samba, torch
            >>> samba.ones((), dtype=torch.bfloat16).new_empty((2, 3)).shape
            torch.Size([2, 3])
        """
        sizes, options = new_arguments((size, *args), kwargs)
        return cast("Self", super().new_empty(sizes, **options))

    def new_zeros(self, size: Size, *args: Any, **kwargs: Any) -> Self:
        """Makes a SambaTensor of zeros; the arguments are those of ``new_empty``.

        Example:
            >>> import samba
            >>> samba.ones(()).new_zeros(2).tolist()
            [0.0, 0.0]
        """
        sizes, options = new_arguments((size, *args), kwargs)
        return cast("Self", super().new_zeros(sizes, **options))

    def new_ones(self, size: Size, *args: Any, **kwargs: Any) -> Self:
        """Makes a SambaTensor of ones; the arguments are those of ``new_empty``.

        Example:
            >>> import samba
            >>> samba.zeros(()).new_ones((2, 1)).tolist()
            [[1.0], [1.0]]
        """
        sizes, options = new_arguments((size, *args), kwargs)
        return cast("Self", super().new_ones(sizes, **options))

    def new_full(  # pyright: ignore[reportIncompatibleMethodOverride]  # as above
        self,
        size: Size,
        fill_value: complex,
        dtype: DType | None = None,
        device: Any = None,
        requires_grad: bool | None = False,
        **kwargs: Any,
    ) -> Self:
        """Makes a SambaTensor of one value.

        Args:
            size: Sizes of the result.
            fill_value: The value.
            dtype: Element type, that of this tensor if None.
            device: Has no effect: SambaTensors live on the host.
            requires_grad: Whether autograd records what is done with it.
            kwargs: Further arguments of ``torch.Tensor.new_full``.

        Example:
            >>> import samba
            >>> samba.ones(()).new_full((2,), 5.0).tolist()
            [5.0, 5.0]
        """
        keywords = {**kwargs, "dtype": dtype, "requires_grad": requires_grad}
        sizes, options = new_arguments((size,), keywords)
        return cast("Self", super().new_full(sizes, fill_value, **options))

    def to(self, *args: Any, other: Tensor | None = None, **kwargs: Any) -> Self:
        """Casts to a dtype, or to the dtype of another tensor; see ``torch.Tensor.to``.

        Args:
            args: A dtype, a tensor, or any other arguments of ``torch.Tensor.to``.
            other: The tensor, given by name.
            kwargs: Keywords of ``torch.Tensor.to``.

        Returns:
            A SambaTensor with the names of this one, or this one if nothing changes.

        Example:
            >>> import samba, torch
            >>> samba.ones(2).to(torch.bfloat16).dtype
            torch.bfloat16
        """
        if other is not None:
            args = (other, *args)
        return cast("Self", super().to(*args, **kwargs))

    def type(self, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        """Names the type, or casts to another.

        Args:
            dtype: A dtype, or the name or class of a torch tensor type. None asks for the name.
            non_blocking: Not supported, False only.
            kwargs: None are supported.

        Returns:
            The name, or a SambaTensor with the names of this one; this one if nothing changes.

        Raises:
            UnsupportedKeyword: ``non_blocking`` or another keyword is given.

        Example:
            >>> import samba, torch
            >>> samba.ones(2).type()
            'torch.FloatTensor'
            >>> samba.ones(2).type(torch.int16).dtype
            torch.int16
        """
        no_more_than_dtype(non_blocking, **kwargs)
        return super().type() if dtype is None else super().type(dtype)

    def type_as(self, tensor: Tensor) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]  # SambaFlow names the argument so
        """Casts to the type of another tensor; the tensor itself if it has that type.

        Example:
            >>> import samba, torch
            >>> samba.ones(2).type_as(samba.ones(1, dtype=torch.int8)).dtype
            torch.int8
        """
        return cast("Self", super().type_as(tensor))

    def view_as(self, other: Tensor) -> Self:
        """Views the same values in the shape of another tensor, which may be empty.

        Raises:
            ConversionError: ``other`` is not a tensor.

        Example:
            >>> import samba
            >>> samba.ones(2, 3).view_as(samba.SambaTensor(shape=(3, 2))).shape
            torch.Size([3, 2])
        """
        if not isinstance(other, Tensor):
            raise ConversionError(
                where="SambaTensor.view_as(other)", found=described(other), wanted="a tensor"
            )
        return cast("Self", self.view(other.shape))


def new_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Sizes and options of a ``new_*`` method, whether written torch's or SambaFlow's way.

    Args:
        args: Positional arguments: the sizes, then perhaps dtype and ``requires_grad``.
        kwargs: Keywords; a device has no effect and is left out.

    Example:
        >>> new_arguments(((2, 3), torch.int8), {"device": "cpu"})
        ((2, 3), {'dtype': torch.int8, 'requires_grad': False})
    """
    count = 0
    while count < len(args) and isinstance(args[count], int) and type(args[count]) is not bool:
        count += 1
    sizes = args[:count] if count else _sizes(args[0])
    rest = args[count:] if count else args[1:]
    options = {**dict(zip(("dtype", "requires_grad"), rest, strict=False)), **kwargs}
    options.pop("device", None)
    flag = options.get("requires_grad")
    where = "SambaTensor.new_...(requires_grad=...)"
    options["requires_grad"] = flag is not None and flag_of(flag, where)
    return sizes, options


def _sizes(size: Any) -> tuple[int, ...]:
    try:
        return tuple(size)
    except TypeError:
        raise ConversionError(
            where="SambaTensor.new_...(size)",
            found=described(size),
            wanted="sizes, as numbers or in a tuple",
        ) from None


def no_more_than_dtype(non_blocking: bool = False, **kwargs: Any) -> None:
    """Refuse the arguments of ``type`` that SambaFlow does not support.

    Raises:
        UnsupportedKeyword: ``non_blocking`` or another keyword is given.
    """
    refused = [*(["non_blocking"] if non_blocking else []), *kwargs]
    if refused:
        raise UnsupportedKeyword(
            function="SambaTensor.type", found=tuple(refused), wanted=("dtype",)
        )


def integral(index: Any) -> Any:
    """An index with int64 in place of tensors of floating type, which torch refuses.

    Args:
        index: What stands in the brackets.

    Raises:
        IndexError: A tensor holds a number that is not whole.
    """
    if isinstance(index, tuple):
        return tuple(integral(item) for item in index)
    if not isinstance(index, torch.Tensor) or not index.is_floating_point():
        return index
    whole = index.long()
    if not torch.compiler.is_exporting() and not bool((whole == index).all()):
        raise IndexError(
            f"index: found {index.dtype} with numbers that are not whole, expected whole numbers. "
            "Round the tensor first."
        )
    return whole
