"""A run whose folder, site or class is called by a piece of a page: shown as text, never run."""

import shutil
import threading
from pathlib import Path

import pytest
from chromium import dom, needs_browser

import fedstill
from fedstill.report import watch

HOSTILE = "<img src=x onerror=console.error('HARM')>"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs under a folder of that name; one of them cannot be read, so that its path stands in a note."""
    where = tmp_path_factory.mktemp("watch") / HOSTILE
    for name in (HOSTILE, "broken"):
        fedstill.run("fedavg", data="digits", clients=2, rounds=1, model="mlp", out=where, name="plain")
        shutil.move(where / "plain", where / name)
    (where / "broken" / "metrics.jsonl").write_text(f'{{"{HOSTILE}\n')
    return where


@needs_browser
def test_no_name_on_the_watch_page_is_run(hostile: Path, tmp_path: Path) -> None:
    served = watch.server(hostile, 0)
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    try:
        page, console = dom(f"http://127.0.0.1:{served.server_port}/", tmp_path)
    finally:
        served.shutdown()
        served.server_close()
    assert "HARM" in page  # the name is shown
    assert "<img" not in page  # as text
    assert not any("HARM" in line for line in console)
