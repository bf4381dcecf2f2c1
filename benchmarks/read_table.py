"""How long a table of 1,000,000 rows and 50 columns takes to be read, and how much memory: prints both.

python benchmarks/read_table.py [--rows 1000000] [--columns 50]
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv


def written(path: Path, rows: int, columns: int) -> None:
    rng = np.random.default_rng(0)
    kinds = {f"n{i}": rng.normal(size=rows).round(4) for i in range(columns - 4)}
    kinds |= {f"c{i}": np.array(list("abcdefgh"))[rng.integers(0, 8, rows)] for i in range(2)}
    kinds |= {"site": rng.integers(0, 20, rows), "label": rng.integers(0, 3, rows)}
    pyarrow.csv.write_csv(pa.table(kinds), path)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--rows", type=int, default=1_000_000)
    words.add_argument("--columns", type=int, default=50)
    words.add_argument("--file", type=Path, help="an existing file, instead of writing one")
    asked = words.parse_args()
    if asked.file is None:  # written by another process, whose memory does not count
        with tempfile.TemporaryDirectory() as folder:
            import subprocess
            import sys

            path = Path(folder) / "table.csv"
            call = f"written(Path({str(path)!r}), {asked.rows}, {asked.columns})"
            code = f"from pathlib import Path; from read_table import written; {call}"
            subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, check=True)
            measure(path)
    else:
        measure(asked.file)


def measure(path: Path) -> None:
    from fedstill.data import Reading, load

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began = time.perf_counter()
    data = load(path, Reading(label="label", site="site"))
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{len(data.train):,} rows of {path.stat().st_size / 2**20:.0f} MiB: {seconds:.1f} s, peak {peak:.0f} MiB")
    print(f"(of which {before:.0f} MiB before reading)")


if __name__ == "__main__":
    main()
