"""Makes the pictures in ``docs/pictures`` again: ``make pictures``, one to three minutes.

It compiles and measures ``examples/char_gpt.py``, writes the report about it with the commands that
docs/cost.md names, builds the site, and has Chromium draw both: ``apt-get install chromium``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

__all__ = ["PICTURES", "main"]

ROOT = Path(__file__).resolve().parents[1]
PICTURES = {"1600-light": (1600, 1400, "light"), "400-dark": (400, 1400, "dark")}
"""Ends of names, with width, height and scheme: of the report, and of the site's first page."""
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
        report = _report(Path(place)).as_uri()
        with _site(Path(place) / "site") as site:
            drawn = _draw(browser, {"report": report, "site": site}, folder)
    print("\n".join(map(str, drawn)))
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


@contextmanager
def _site(place: Path) -> Iterator[str]:
    """The first page of the site, as ``make docs`` builds it; its search needs a server."""
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(place)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )
    handler = partial(_Quiet, directory=str(place))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/index.html"
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """A page has a hundred files."""


def _draw(browser: str, pages: dict[str, str], folder: Path) -> list[Path]:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  # of the dev extra

    drawn: list[Path] = []
    with sync_playwright() as playwright:
        # The sandbox needs rights that containers seldom give; the pages are this project's own.
        started = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for name, (width, height, scheme) in PICTURES.items():
            context = started.new_context(
                viewport={"width": width, "height": height},
                color_scheme="dark" if scheme == "dark" else "light",
            )
            tab = context.new_page()
            for what, page in pages.items():
                tab.goto(page, wait_until="networkidle")
                drawn.append(folder / f"{what}-{name}.png")
                tab.screenshot(path=str(drawn[-1]))
            context.close()
        started.close()
    return drawn


if __name__ == "__main__":
    sys.exit(main())
