"""Examples find what those before them have compiled, as they do where a person starts them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from emulator.kept_files import CACHE_VARIABLE


@pytest.fixture(scope="package", autouse=True)
def kept_executables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache that these tests share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("kept")))
        yield
