"""What a reader of the pages has of their own: tables, windows of sensors, texts, pictures, networks, data sets.

All are made here, small, of random numbers from one seed, under the names that the pages use.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from fedstill.data.published import PUBLISHED

NETWORKS = """\
from torch import nn


def wide(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(64), nn.ReLU(), nn.Linear(64, classes))
"""


def make(folder: Path) -> None:
    """Write every file that a page's commands name and do not make themselves."""
    draw = np.random.default_rng(1)
    tables(folder, draw)
    pictures(folder, draw)
    (folder / "mynets.py").write_text(NETWORKS, encoding="utf-8")


def tables(folder: Path, draw: np.random.Generator) -> None:
    """Patients of four hospitals, sensors of three people, and mails."""
    hospital = np.repeat(["Basel", "Zurich", "Bern", "Chur"], 40)
    ill = draw.random(160) < 0.4
    frame = pd.DataFrame({"age": draw.integers(20, 90, 160) + 9 * ill, "chol": draw.normal(200, 20, 160).round(1)})
    frame = frame.assign(sex=draw.choice(["f", "m"], 160), hospital=hospital)
    frame.drop(columns="hospital").head(5).to_csv(folder / "new-patients.csv", index=False)
    frame.assign(outcome=np.where(ill, "ill", "well")).to_csv(folder / "patients.csv", index=False)

    rows = pd.DataFrame(draw.normal(size=(3 * 2 * 320, 3)), columns=["ax", "ay", "az"])
    rows["subject"] = np.repeat(["p1", "p2", "p3"], 640)
    rows["activity"] = np.tile(np.repeat(["walk", "sit"], 320), 3)
    rows["t"] = np.tile(np.arange(640), 3)
    rows.to_parquet(folder / "readings.parquet")

    words = {"yes": "win money now", "no": "meeting at noon"}
    mails = [(f"{words[spam]} {draw.integers(99)}", spam) for spam in ("yes", "no") * 60]
    pd.DataFrame(mails, columns=["body", "spam"]).to_csv(folder / "mails.csv", index=False)


def pictures(folder: Path, draw: np.random.Generator) -> None:
    """A picture of a digit's size, a folder of photographs, and small stand-ins of published data sets."""
    Image.fromarray(draw.integers(0, 255, (8, 8), np.uint8)).save(folder / "picture.png")
    for number in range(30):
        place = folder / "photographs" / f"kind{number % 3}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 255, (28, 28), np.uint8)).save(place / f"{number}.png")
    (folder / "data").mkdir()
    for known in PUBLISHED:
        side = (32, 32, 3) if "RGB" in known.doc else (28, 28)
        classes = len(known.class_names)
        parts = {}
        for part, count in (("train", max(400, 4 * classes)), ("test", 2 * classes)):
            parts[f"x_{part}"] = draw.integers(0, 255, (count, *side), np.uint8)
            parts[f"y_{part}"] = np.arange(count) % classes
        np.savez(folder / "data" / f"{known.name}.npz", **parts)
