"""A newcomer's path, timed: the commands of `docs/index.md`, typed one after the other in a fresh clone.

python docs/newcomer.py              everything, with `make` setting up an environment of its own
python docs/newcomer.py --here       in the environment of this Python: without the time that installing takes
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST = 10
"""So many commands at the most."""


def path(page: str) -> tuple[list[str], str]:
    """The commands that a page tells a newcomer to type, and the file with a model of their own."""
    text = page.split("<!-- newcomer -->")[1]
    model, commands = re.findall(r"^```\w*\n(.*?)^```", text, re.S | re.M)[:2]
    typed = [re.sub(r"\s+#.*", "", line) for line in commands.splitlines() if line.strip()]
    return typed, model


def patients(folder: Path) -> None:
    """The newcomer's own files: a table with a row a patient, and one of patients whose outcome nobody knows."""
    from sklearn.datasets import load_breast_cancer

    table = load_breast_cancer(as_frame=True).frame.iloc[:, [0, 1, 2, 3, -1]].rename(columns={"target": "outcome"})
    table["hospital"] = [f"hospital {k % 4}" for k in range(len(table))]
    table.to_csv(folder / "patients.csv", index=False)
    table.drop(columns="outcome").head(5).to_csv(folder / "new-patients.csv", index=False)


def walk(folder: Path, here: bool) -> list[tuple[str, float]]:
    """Type every command in a clone; returns each with its seconds. One that fails ends the walk."""
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
    typed, model = path((folder / "docs" / "index.md").read_text(encoding="utf-8"))
    assert len(typed) <= MOST, f"{len(typed)} commands: more than {MOST}"
    patients(folder)
    (folder / "my_model.py").write_text(model, encoding="utf-8")
    own = f"{shlex.quote(sys.executable)} -m fedstill"
    script = f'fedstill() {{ {own} "$@"; }}\n' if here else ""
    spent = []
    for line in typed:
        run = {"make demo": "fedstill demo", "source .venv/bin/activate": "true"}.get(line, line) if here else line
        before = "" if here or not (folder / ".venv/bin/activate").exists() else "source .venv/bin/activate\n"
        began = time.monotonic()
        environment = {**os.environ, "PYTHONPATH": str(folder / "src")} if here else dict(os.environ)
        done = subprocess.run(
            ["bash", "-c", f"{script}{before}{run}"], cwd=folder, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(f"{line}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        spent.append((line, time.monotonic() - began))
        print(f"{spent[-1][1]:8.1f} s  {line}", flush=True)
    assert (folder / "report.html").exists()
    return spent


if __name__ == "__main__":
    words = argparse.ArgumentParser()
    words.add_argument("--here", action="store_true")
    with tempfile.TemporaryDirectory() as room:
        spent = walk(Path(room) / "fedstill", words.parse_args().here)
    print(f"{sum(seconds for _, seconds in spent):8.1f} s  {len(spent)} commands, {os.cpu_count()} cores, ", end="")
    print(f"load {os.getloadavg()[0]:.1f}")
