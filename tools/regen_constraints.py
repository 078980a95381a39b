"""Make ``constraints.txt`` again from ``pyproject.toml``, by uv.

    tools/regen_constraints.py                     keep versions that will still do
    tools/regen_constraints.py --upgrade           take the newest
    tools/regen_constraints.py --upgrade-package P take the newest of one package

The file holds the exact version of everything that `make setup` can install on any platform, with
the SHA-256 of each file that the index has of it.
The same index and the same file give the same file again. `make lock` installs uv and calls this.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

if str(ROOT) not in sys.path:  # run as a script, the tools are those of this tree
    sys.path.insert(0, str(ROOT))

from tools.requirements import LOCK, locked  # noqa: E402  # after the path is set

HEADER = """\
# Exact versions of everything `make setup` installs, with the SHA-256 of every file of them:
# what has another is not installed. Lower bounds are in pyproject.toml; made by `make lock`.
"""
_EXTRAS = ("dev", "lock", "cuda", "compiler")
_ALSO = ("pip",)
"""What installs all else is not among the project's own requirements."""


def compiled(arguments: list[str]) -> str:
    """What uv makes of ``pyproject.toml``, in the order of names.

    Args:
        arguments: Further options of uv.
    """
    uv = shutil.which("uv", path=sysconfig.get_path("scripts")) or shutil.which("uv")
    if uv is None:
        raise SystemExit("There is no uv here: use `make lock`, or install it (pip install uv).")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    with tempfile.TemporaryDirectory() as folder:
        also = Path(folder) / "also.in"
        also.write_text("\n".join([*project["build-system"]["requires"], *_ALSO]))
        output = Path(folder) / "constraints.txt"
        if LOCK.exists():
            # Its versions are taken where they will do; hashes are asked for again.
            output.write_text("\n".join(entry.split(" \\\n")[0] for entry in locked().values()))
        command = [uv, "pip", "compile", "--quiet", "--universal", "--generate-hashes"]
        command += ["--no-build", "--no-header", "--no-annotate", "--no-emit-index-url"]
        command += ["--python-version", project["project"]["requires-python"].lstrip(">=")]
        command += [word for extra in _EXTRAS for word in ("--extra", extra)]
        command += [*arguments, "--output-file", str(output), "pyproject.toml", str(also)]
        done = subprocess.run(command, cwd=ROOT, check=False)
        if done.returncode:
            raise SystemExit(done.returncode)
        return output.read_text()


def with_more_hashes(text: str) -> str:
    """The constraints, with what ``[tool.constraints]`` adds to hashes of the index.

    Args:
        text: What uv made.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    more = project["tool"]["constraints"]["more-hashes"]
    entries = []
    for _, entry in sorted(locked(text).items()):
        pin = re.split(r"[ \\]", entry, maxsplit=1)[0]
        entries.append(entry + "".join(f" \\\n    --hash={h}" for h in more.get(pin, ())))
    return "\n".join(entries) + "\n"


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description="Regenerate constraints.txt.")
    parser.add_argument("--upgrade", action="store_true", help="upgrade all packages")
    parser.add_argument(
        "--upgrade-package", action="append", default=[], help="upgrade one package"
    )
    args = parser.parse_args()
    options = ["--upgrade"] if args.upgrade else []
    options += [word for name in args.upgrade_package for word in ("--upgrade-package", name)]
    LOCK.write_text(HEADER + with_more_hashes(compiled(options)))


if __name__ == "__main__":
    main()
