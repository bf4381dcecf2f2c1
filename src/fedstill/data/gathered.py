"""Data sets beyond pictures that many papers use, where FEDSTILL_DATA has them: tables, sensors and texts.

Each is one file: an .npz with x_train, y_train and so on, or a .csv.gz. `read_as` reads it another way, with other
sites for instance: `--data eicu-demo --site site` takes hospitals for regions.
"""

from dataclasses import dataclass
from pathlib import Path

from fedstill.core.errors import DataError
from fedstill.core.value import changes
from fedstill.data import arrays, columns
from fedstill.data.files import read_npz
from fedstill.data.published import VARIABLE, folders, with_site
from fedstill.data.reading import Reading
from fedstill.data.samples import Dataset


@dataclass(frozen=True)
class Gathered:
    """A data set of one file. Calling it loads it; `where()` only looks for it."""

    name: str
    doc: str
    file: str
    reading: Reading = Reading()

    def __call__(self) -> Dataset:
        """Load it from the first folder that has it; one line says what to do when none has."""
        return self.read_as(Reading())

    def read_as(self, reading: Reading) -> Dataset:
        """The data set, with what `reading` says in place of how it is usually read."""
        path = self._path()
        if path is None:
            raise DataError(f"{self.name} is not on this machine: set {VARIABLE} to a folder that has {self.file}")
        asked = changes(reading)
        how = Reading(**{**vars(self.reading), **asked})
        if path.suffix == ".npz":
            found = with_site(read_npz(path), how.site, self.name)
            return arrays.dataset(self.name, found, str(path), kind=how.kind)
        from fedstill.data import tables

        return tables.dataset(self.name, columns.read_file(path, how), str(path), how)

    def where(self) -> str | None:
        """Where it would be read from, or None."""
        path = self._path()
        return None if path is None else str(path)

    def _path(self) -> Path | None:
        return next((root / self.file for root in folders() if (root / self.file).is_file()), None)


_TEXT = Reading(label="label", text="text", split="split")

GATHERED = (
    Gathered("heart-4hospitals", "heart disease, 920 patients of 4 hospitals, 13 columns", "heart-4hospitals.npz"),
    Gathered(
        "eicu-demo", "death in hospital, 2,179 stays in 5 regions (site: 186 hospitals), 49 columns", "eicu-demo.npz",
        Reading(site="region"),
    ),
    Gathered("diabetes130", "readmission of 69,973 patients in 15 specialties, 42 columns", "diabetes130.npz"),
    Gathered("adult", "income of 48,842 people, 14 columns", "adult.npz"),
    Gathered("credit-default", "default of 30,000 card holders, 23 columns", "credit-default.npz"),
    Gathered("motionsense", "6 activities of 24 people, 9 channels of a phone, windows of 128", "motionsense.npz"),
    Gathered("mitbih-beats", "4 sorts of heart beats of 44 patients, windows of 160", "mitbih-beats.npz"),
    Gathered("cmapss-fd001", "failure within 30 cycles, 200 simulated engines, 24 columns", "cmapss-fd001.npz"),
    Gathered(
        "amazon-4domains", "praise or blame in 7,851 reviews of 4 sorts of products", "amazon-4domains.csv.gz",
        Reading(label="label", text="text", split="split", site="site"),
    ),
    Gathered("sms-spam", "5,125 short messages, spam or not", "sms-spam.csv.gz", _TEXT),
    Gathered("banking77", "13,083 questions to a bank, 77 intents", "banking77.csv.gz", _TEXT),
    Gathered("20news-10k", "9,983 posts to 20 newsgroups", "20news-10k.csv.gz", _TEXT),
    Gathered("pneumoniamnist", "5,332 chest X-rays, pneumonia or not, 28×28 grey", "pneumoniamnist.npz"),
)  # fmt: skip
