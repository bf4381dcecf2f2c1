"""A page in headless Chromium, where there is one: its DOM after the scripts, and what the console said."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

BROWSER = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium on PATH")
_FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-extensions"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
    *("--enable-logging=stderr", "--virtual-time-budget=4000"),
]


def dom(address: str | Path, room: Path, *flags: str) -> tuple[str, list[str]]:
    """The page's DOM once its scripts have run, and the lines of its console."""
    assert BROWSER is not None
    where = address if isinstance(address, str) else address.as_uri()
    command = [BROWSER, *_FLAGS, f"--user-data-dir={room / 'profile'}", *flags, "--dump-dom", where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, re.findall(r".*CONSOLE.*", done.stderr)


def with_script(page: Path, script: str, target: Path) -> Path:
    """A copy of a page with one more script at its end; what it wants to say it puts into the DOM."""
    target.write_text(page.read_text().replace("</body>", f"<script>{script}</script></body>"))
    return target
