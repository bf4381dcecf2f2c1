"""How a table is read: which column is the label, the site, the time, the text, and what the others hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedstill.core.errors import UsageError
from fedstill.core.registry import Registry
from fedstill.core.value import Value, build, setting


@dataclass(frozen=True)
class Reading(Value):
    """What a user says of a file or frame before it is read; what is not said is found in the data, and told."""

    label: str | None = setting(None, doc="the column of the classes")
    site: str | None = setting(None, doc="the column that says which site a row is from: each becomes a client")
    time: str | None = setting(None, doc="the column of time: rows become windows of a series, in its order")
    window: int | None = setting(None, ge=1, doc="rows of a window")
    step: int | None = setting(None, ge=1, doc="rows from one window to the next (default: the window)")
    text: str | None = setting(None, doc="the column of texts: it alone is read")
    split: str | None = setting(None, doc="the column that says train or test")
    ignore: tuple[str, ...] = setting((), doc="columns that are not read, such as an identifier")
    numeric: tuple[str, ...] = setting((), doc="columns that hold numbers, whatever they look like")
    categorical: tuple[str, ...] = setting((), doc="columns that hold categories, whatever they look like")
    categories: tuple[str, ...] = setting((), doc="the only categories a column may have: sex=f|m")
    kind: str = setting("auto", doc="image, series, table, tokens or plain, where an array could be several")
    resize: int | None = setting(None, ge=1, doc="images: scale all to this many pixels a side")
    length: int = setting(128, ge=1, doc="texts: tokens that are read of each")
    vocabulary: int = setting(8192, ge=2, doc="texts: tokens that are told apart")
    embedding: int = setting(32, ge=1, doc="texts: numbers that a model has for a token")
    tokenizer: str = setting("hash", doc="texts: hash, or the path of a `tokenizers` file")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.time is not None and self.window is None:
            raise UsageError(f"time = {self.time!r}: say how many rows make a window (window = 128)")
        if self.window is not None and self.time is None:
            raise UsageError(f"window = {self.window}: say which column is the time (time = 't')")
        for name in (self.label, self.site, self.time, self.text):
            if name is not None and name in self.ignore:
                raise UsageError(f"ignore = {name}: this column is asked for elsewhere")
        for role, name in (("site", self.site), ("time", self.time), ("text", self.text), ("split", self.split)):
            if name is not None and name == self.label:
                raise UsageError(f"{role} = {name!r}: this column is the label")

    @property
    def declared(self) -> dict[str, tuple[str, ...]]:
        """The only categories that columns may have, by column."""
        categories = {}
        for line in self.categories:
            column, equals, known = line.partition("=")
            if not equals or not known:
                raise UsageError(f"categories = {line!r}: must be column=one|two|…")
            categories[column] = tuple(known.split("|"))
        return categories


readings: Registry[Reading] = Registry("reading", Reading)
readings.register("columns")(Reading)

SHORT = (
    "label", "site", "time", "window", "step", "text", "ignore", "numeric", "categorical", "kind", "resize", "tokenizer"
)  # fmt: skip
"""Settings of a reading that an experiment may name directly: `run(..., label="outcome")`."""


def reading_of(settings: Mapping[str, Any]) -> Reading | None:
    """A reading with these settings; None where nothing is said."""
    return build(Reading, settings) if settings else None
