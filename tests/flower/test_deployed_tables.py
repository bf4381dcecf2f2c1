"""Real sites with tables, over the loopback: they agree on columns and categories, or the odd one is named."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from federation import LONG, Federation

from fedstill.core.errors import FedstillError
from fedstill.experiment.rundir import RunDir

pytestmark = [
    pytest.mark.xdist_group("deploy"), pytest.mark.filterwarnings("ignore::DeprecationWarning"), LONG
]  # fmt: skip

ROWS = [(20 + i % 40, "fm"[i % 2], "yes" if i % 40 > 19 else "no") for i in range(80)]
TABLES = {
    "site-a": "age,sex,y\n" + "".join(f"{age},{sex},{y}\n" for age, sex, y in ROWS),
    "site-b": "y,sex,age\n" + "".join(f"{y},{'x' if sex == 'f' else sex},{age}\n" for age, sex, y in ROWS),
}
"""The same rows; site-b has another order of columns, and a category that site-a has not."""
PLAN = {
    "method": {"name": "fedavg", "epochs": 2, "optimizer": "adam", "lr": 0.01, "batch": 16},
    "clients": 2,
    "rounds": 3,
}


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path, secure=False)
    try:
        made.start_hub()
        yield made
    finally:
        made.close()


def joined(federation: Federation, name: str, text: str) -> None:
    path = federation.folder / f"{name}.csv"
    path.write_text(text)
    federation.start_site(name, path, "--label", "y")


def test_sites_with_other_orders_and_categories_train_together_and_an_odd_one_is_named(tables: Federation) -> None:
    """Whoever is older than 39 is ill: both sites' rows say so, and the common model learns it."""
    for name, text in TABLES.items():
        joined(tables, name, text)
    rows = RunDir.open(tables.deploy(PLAN)).rows()
    assert [row["missing"] for row in rows] == [{}, {}, {}]
    assert rows[-1]["models"]["active"]["amp"] > 0.8
    tables.kill("site-b")
    joined(tables, "site-b", TABLES["site-b"].replace("age", "weight"))
    with pytest.raises(FedstillError, match="site-b: has a column 'weight', site site-a has none; they must agree"):
        tables.deploy(PLAN)
