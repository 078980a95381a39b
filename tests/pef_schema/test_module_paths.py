"""Module paths as people read them, and short enough for a cell of a table."""

from __future__ import annotations

import pytest

from pef_schema.module_paths import plain_path, root_of, short_paths

BLOCKS = [f"net__h__{i}__{part}" for i in range(4) for part in ("attn", "attn__proj", "mlp")]


@pytest.mark.parametrize(
    ("paths", "width", "text"),
    [
        (["net", "net__gpt__transformer"], 40, "net, gpt.transformer"),
        (["net__h__0", "net__h__2", "net__h__3"], 40, "h[0,2-3]"),
        (["net__h__3", "net__h__1", "net__h__2"], 40, "h[1-3]"),
        (BLOCKS, 60, "h[0-3].attn, h[0-3].attn.proj, h[0-3].mlp"),
        (BLOCKS, 30, "h[0-3].attn, h[0-3].mlp"),
        ([*BLOCKS, "net__tail"], 20, "h[0-3], tail"),
        ([*BLOCKS, "net__tail"], 8, "h, tail"),
        ([*BLOCKS, "net__tail"], 5, "h, +1"),
        (["net__s__0__b__0", "net__s__0__b__1", "net__s__1__b__0"], 40, "s[0].b[0-1], s[1].b[0]"),
        (["net__s__0__b__0", "net__s__1__b__0"], 40, "s[0-1].b[0]"),
        (["net__h__0__a", "net__h__1__b", "net__h__2__a"], 40, "h[0,2].a, h[1].b"),
        (["net__a_long_path_that_is_alone"], 5, "a_long_path_that_is_alone"),
        (["net__" + "x__" * 40 + "y", "net__z"], 8, "x.x.x, z"),
        (["net__h__007", "net__h__00"], 40, "h.007, h.00"),
        ([], 40, "-"),
    ],
)
def test_paths_in_a_cell(paths: list[str], width: int, text: str) -> None:
    assert short_paths(paths, root="net", width=width) == text


def test_models_that_are_lists_or_several_keep_their_names() -> None:
    layers = ["net__0", "net__1", "net__2__fc"]
    assert root_of(layers) == ""
    assert short_paths(layers) == "net[0-1], net[2].fc"
    assert root_of(["first__fc", "second__fc", ""]) == ""
    assert short_paths(["first__fc", "second__fc"]) == "first.fc, second.fc"


def test_one_path() -> None:
    assert plain_path("net__blocks__0__mlp__2", root="net") == "blocks[0].mlp[2]"
    assert plain_path("other__fc", root="net") == "other.fc"
    assert plain_path("", root="net") == ""
