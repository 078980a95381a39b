"""What a plan is specialised for; free of jax."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Facts about device memory that a plan is specialised for.

    Args:
        seeded: OUTPUT_GRADIENT regions that the host has written; the others hold
            their defaults, which cost nothing.
        no_momentum: Optimizers whose momentum is 0, so that no buffer is kept for it.
        no_dropout: Regions of dropout rates that were 0 from the start, so that no mask is drawn.
        ones: Whether losses that the host left alone start from ones.
        checks: Regions of checked branches, see ``emulator.lowering.branch_checks``.
    """

    seeded: frozenset[int] = frozenset()
    no_momentum: frozenset[int] = frozenset()
    no_dropout: frozenset[int] = frozenset()
    ones: bool = True
    checks: frozenset[int] = frozenset()

    @property
    def facts(self) -> tuple[tuple[str, bool | tuple[int, ...]], ...]:
        """The facts by name, sets of them in order: equal variants have equal ones in any process.

        Example:
            >>> Variant(seeded=frozenset([8, 1])).facts[0]
            ('seeded', (1, 8))
        """
        named = [(fact.name, getattr(self, fact.name)) for fact in fields(self)]
        return tuple([(n, f if isinstance(f, bool) else tuple(sorted(f))) for n, f in named])
