"""FedKF's table I on its page: what it says of the code is what the code says."""

import pytest
from pages import ROOT

import fedstill.methods  # noqa: F401 (registers them)
from fedstill.core.method import methods

PAGE = ROOT / "docs" / "methods" / "fedkf.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and ("●" in line or "○" in line)
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_table_says_what_leaves_a_client_and_who_needs_public_data(row: list[str]) -> None:
    method = methods[row[0]]
    beside = sorted(set(method.leaves_client().values()) - {"model weights"})
    assert row[5] == ("yes" if method.needs_public else "no")
    assert row[6] == (", ".join(beside) or "nothing")


def test_where_paper_and_code_agree_and_where_not() -> None:
    assert len(ROWS) == 10
    assert all((row[3] == "○") == (row[5] == "yes") for row in ROWS)
    assert [row[0] for row in ROWS if (row[4] == "●") != (row[6] == "nothing")] == ["q-ffl"]
