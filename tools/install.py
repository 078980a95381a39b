"""Install what extras of this project require, as ``constraints.txt`` has it, by uv.

    tools/install.py dev cuda

uv writes the files of a hundred packages on all cores; pip takes four times as long. Everything is
a wheel whose hash is known, so nothing of it runs while it is installed. ``make setup`` calls this
in the virtual environment that it fills.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

if str(ROOT) not in sys.path:  # run as a script, the tools are those of this tree
    sys.path.insert(0, str(ROOT))

from tools.requirements import LOCK, requirements  # noqa: E402  # as above


def pip_settings(listing: str) -> dict[str, str]:
    """pip's settings by name; the environment's count before those of its files.

    Args:
        listing: What ``pip config list`` prints.

    Example:
        >>> pip_settings("global.index-url='a'\\n:env:.index-url='b'\\nglobal.timeout='9'")
        {'index-url': 'b', 'timeout': '9'}
    """
    settings: dict[str, str] = {}
    for section in ("global", "install", ":env:"):
        for line in listing.splitlines():
            name, separator, value = line.partition("=")
            if separator and name.startswith(f"{section}."):
                settings[name.removeprefix(f"{section}.")] = ast.literal_eval(value)
    return settings


def index_options(settings: dict[str, str]) -> list[str]:
    """The options by which uv asks the indexes that pip would ask.

    Args:
        settings: pip's settings by name.

    Example:
        >>> index_options({"index-url": "https://a/simple", "extra-index-url": "https://b https://c"})
        ['--index-url', 'https://a/simple', '--extra-index-url', 'https://b', '--extra-index-url', 'https://c']
    """
    words: list[str] = []
    for setting, option in (
        ("index-url", "--index-url"),
        ("extra-index-url", "--extra-index-url"),
        ("trusted-host", "--allow-insecure-host"),
    ):
        for value in settings.get(setting, "").split():
            words += [option, value]
    return words


def link_options(settings: dict[str, str]) -> list[str]:
    """The options by which uv looks for wheels where pip's links point.

    pip passes over a folder that does not exist, and uv ends.

    Args:
        settings: pip's settings by name.

    Example:
        >>> link_options({"find-links": "/none https://a"})
        ['--find-links', 'https://a']
    """
    links = settings.get("find-links", "").split()
    there = [link for link in links if "://" in link or Path(link).exists()]
    return [word for link in there for word in ("--find-links", link)]


def main(extras: list[str]) -> int:
    """Install what the extras require into the environment of this Python.

    Args:
        extras: Names of extras.

    Returns:
        The exit code of uv.
    """
    uv = shutil.which("uv", path=sysconfig.get_path("scripts"))
    if uv is None:
        raise SystemExit("There is no uv beside this Python: use `make setup`.")
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
    ).stdout
    settings = pip_settings(listing)
    lines = "\n".join(r for extra in extras for r in requirements(extra))
    # Hashes say which file is meant, so any index may have it, as with pip. Not `--require-hashes`,
    # which takes no constraints: each version is pinned by one, and uv checks each file against the
    # hashes of it.
    install = [uv, "pip", "install", "--quiet", "--no-build", "--python", sys.executable]
    install += [*index_options(settings), "--index-strategy", "unsafe-best-match"]
    install += ["--verify-hashes", "-c", str(LOCK), "-r", "-"]
    # A build of torch without CUDA spares gigabytes, and counts as newer than the index's. Where
    # links have one whose hash is not known, the index is asked.
    if links := link_options(settings):
        done = subprocess.run(
            [*install, *links], input=lines, check=False, text=True, stderr=subprocess.DEVNULL
        )
        if done.returncode == 0:
            return 0
    return subprocess.run(install, input=lines, check=False, text=True).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
