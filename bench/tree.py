"""Folders in which workers run: this harness over the code of some revision."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.errors import NoRevision

ROOT = Path(__file__).parents[1]
"""The repository."""

PACKAGES = ("samba", "sambaflow", "pef_schema", "emulator")
"""What is measured; the harness itself is always this one, so that both sides are asked alike."""


@contextlib.contextmanager
def tree_of(revision: str | None) -> Iterator[Path]:
    """A folder to run workers in.

    Args:
        revision: A commit, branch or tag; None for the files as they are now.

    Yields:
        A temporary folder of links: ``bench`` to this harness, the packages to the revision's,
        which is checked out in a temporary git worktree.

    Raises:
        NoRevision: If git cannot check it out.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        source = ROOT
        if revision is not None:
            source = folder / "checkout"
            _git(revision, "worktree", "add", "--quiet", "--detach", str(source), revision)
            stack.callback(_git, revision, "worktree", "remove", "--force", str(source))
        links = folder / "links"
        links.mkdir()
        (links / "bench").symlink_to(ROOT / "bench")
        for name in PACKAGES:
            (links / name).symlink_to(source / name)
        yield links


def file_at(revision: str, path: str) -> str | None:
    """Text of a file of the repository at a revision, None if there is none."""
    done = subprocess.run(
        ["git", "show", f"{revision}:{path}"], cwd=ROOT, capture_output=True, text=True
    )
    return done.stdout if done.returncode == 0 else None


def _git(revision: str, *arguments: str) -> None:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        reason = done.stderr.strip().splitlines()
        raise NoRevision(revision=revision, reason=reason[-1] if reason else "git failed")
