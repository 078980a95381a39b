"""Makes the pictures in ``docs/pictures`` anew: ``make pictures``, one to three minutes.

It compiles and measures ``examples/char_gpt.py``, writes the report about it with the commands that
docs/cost.md names, and has Chromium draw it. That is an extra: ``apt-get install chromium``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["PICTURES", "main"]

ROOT = Path(__file__).resolve().parents[1]
PICTURES = {
    "report-1600-light.png": (1600, 1400, "light"),
    "report-400-dark.png": (400, 1400, "dark"),
}
"""Names with width, height and scheme."""
_BROWSERS = ("chromium", "chromium-browser")


def main(folder: Path = ROOT / "docs" / "pictures") -> int:
    """Make the pictures.

    Args:
        folder: Where they are written.

    Returns:
        The exit code: 1 where there is no browser.
    """
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        print("There is no chromium to draw pages with: apt-get install chromium", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as place:
        _draw(browser, _report(Path(place)), folder)
    print("\n".join(str(folder / name) for name in PICTURES))
    return 0


def _report(place: Path) -> Path:
    """The page about a small GPT, with times and a machine measured here."""
    gpt, pef = str(ROOT / "examples" / "char_gpt.py"), "out/gpt/gpt.pef"
    for words in (
        [gpt, "compile", "--pef-name=gpt"],
        [gpt, "measure-sections", f"--pef={pef}", "-n", "20", "--bench-report-json=times.json"],
        ["-m", "samba", "estimate", pef, "--machine", "this", "--save", "machine.toml"],
        [
            *("-m", "samba", "report", pef, "-o", "report.html"),
            *("--times", "times.json", "--machine", "machine.toml"),
        ],
    ):
        subprocess.run(
            [sys.executable, *words],
            cwd=place,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            check=True,
        )
    return place / "report.html"


def _draw(browser: str, page: Path, folder: Path) -> None:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  # of the dev extra

    with sync_playwright() as playwright:
        # The sandbox needs rights that containers seldom give; the page runs no script.
        started = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for name, (width, height, scheme) in PICTURES.items():
            context = started.new_context(
                viewport={"width": width, "height": height},
                color_scheme="dark" if scheme == "dark" else "light",
            )
            tab = context.new_page()
            tab.goto(page.as_uri())
            tab.screenshot(path=str(folder / name))
            context.close()
        started.close()


if __name__ == "__main__":
    sys.exit(main())
