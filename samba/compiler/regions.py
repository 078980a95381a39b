"""The region table: names of device memory, shared where tensors say so."""

from __future__ import annotations

from dataclasses import dataclass, field

from pef_schema.errors import SambaError
from pef_schema.program import Argin, ArginKind, DType, Region, Role, Symbol


class RegionConflict(SambaError):
    """Two tensors share a region name but not a shape, dtype or role."""

    def __init__(self, *, name: str, first: Region, second: Region) -> None:
        self.name, self.first, self.second = name, first, second
        super().__init__(
            f"region {name}: one tensor has {_text(first)}, another {_text(second)}; "
            "tensors that share sn_region_name must agree. Give one of them another region name."
        )


def _text(region: Region) -> str:
    return f"shape {list(region.shape)} {region.dtype.name.lower()} as {region.role.name.lower()}"


@dataclass(slots=True)
class RegionTable:
    """The regions of a program, with the argins, symbols and constants that belong to them.

    All graphs and optimizers of a program add to one table, and nothing is changed or taken away:
    a region's number is its place in the order of adding. That order decides the bytes of a PEF,
    so it stays the same from version to version.
    """

    regions: list[Region] = field(default_factory=list)
    argins: list[Argin] = field(default_factory=list)
    symbols: list[Symbol] = field(default_factory=list)
    segments: list[bytes] = field(default_factory=list)
    _by_name: dict[str, int] = field(default_factory=dict)
    _named: set[str] = field(default_factory=set)

    def add(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: DType,
        role: Role,
        *,
        share: bool = False,
        data: bytes | None = None,
    ) -> int:
        """Add a region, or find it again where ``share`` allows.

        Args:
            name: Wanted name; made unique with a suffix unless shared.
            shape, dtype, role: Of the region.
            share: Whether an existing region of that name is meant.
            data: Initial bytes of a constant.

        Returns:
            The region's index.

        Raises:
            RegionConflict: If a shared region differs.
        """
        segment = -1
        if data is not None:
            segment = len(self.segments)
            self.segments.append(data)
        region = Region(name=name, shape=shape, dtype=dtype, role=role, segment=segment)
        if name in self._by_name:
            index = self._by_name[name]
            if share:
                first = self.regions[index]
                if (first.shape, first.dtype, first.role) != (shape, dtype, role):
                    raise RegionConflict(name=name, first=first, second=region)
                return index
            number = 1
            while f"{name}_{number}" in self._by_name:
                number += 1
            return self._append(f"{name}_{number}", region)
        return self._append(name, region)

    def _append(self, name: str, region: Region) -> int:
        index = len(self.regions)
        self._by_name[name] = index
        self.regions.append(
            Region(
                name=name,
                shape=region.shape,
                dtype=region.dtype,
                role=region.role,
                segment=region.segment,
            )
        )
        return index

    def add_argin(self, name: str, region: int, kind: ArginKind, default: float) -> None:
        """Let the host set a region before a run.

        Args:
            name: Name of the argin. Where several graphs share the region, the first names it.
            region: The region.
            kind: What it is for.
            default: Its value until the host sets another.
        """
        if all(argin.region != region for argin in self.argins):
            self.argins.append(Argin(name=name, region=region, kind=kind, default=default))

    def name_tensor(self, name: str, region: int, grad_region: int) -> None:
        """Let users find a tensor by its own name.

        Args:
            name: The name. Where several graphs have it, the first one's tensor keeps it.
            region: Region of the tensor.
            grad_region: Region of its gradient, -1 if there is none.
        """
        if name not in self._named:
            self._named.add(name)
            self.symbols.append(Symbol(name=name, region=region, grad_region=grad_region))
