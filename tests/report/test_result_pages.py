"""Leaderboard and pages made from records: every number of a page is one of a record."""

import json
import re
import shlex
import tomllib
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from smallest import preset_base

from fedstill import cli
from fedstill.core.errors import UsageError
from fedstill.core.method import methods
from fedstill.experiment.archive import Archive
from fedstill.experiment.claims import Claim, claims
from fedstill.experiment.judging import Judgement
from fedstill.experiment.leaderboard import League, Score, Standing, leagues, ranks, tuned
from fedstill.experiment.presets import read_preset
from fedstill.experiment.records import record_of
from fedstill.experiment.reproduce import RECORDED_SEEDS, plan
from fedstill.experiment.run import start
from fedstill.experiment.statement import compared
from fedstill.report import leaderboard, result_pages
from fedstill.report.claims import sentence
from fedstill.report.ranks import cliques

ROOT = Path(__file__).parents[2]

BOARD = f"""
title = "A tiny board"
kind = "table"
metrics = ["amp", "fm", "wlp", "accuracy"]
{preset_base(evaluate_every=2)}[[rows]]
label = "fedavg"
method = {{ name = "fedavg", lr = 0.1, epochs = 1 }}
[[rows]]
label = "fedprox"
method = {{ name = "fedprox", lr = 0.1, epochs = 1 }}
[[rows]]
label = "local"
method = {{ name = "local", lr = 0.1, epochs = 1 }}
[[columns]]
label = "α = 1"
set = {{ partition = {{ name = "dirichlet", alpha = 1.0 }} }}
[[columns]]
label = "α = 0.1"
set = {{ partition = {{ name = "dirichlet", alpha = 0.1 }} }}
[[claims]]
text = "FedAvg is better than FedProx"
left = "fedavg"
right = "fedprox"
metrics = ["amp"]
"""


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Archive]:
    room = tmp_path_factory.mktemp("board")
    file = room / "tiny.toml"
    file.write_text(BOARD)
    archive = Archive(room / "results")
    for entry in plan(read_preset(str(file)), room / "tiny", seeds=2):
        for job in entry.jobs:
            start(job.plan, out=job.path.parent, name=job.path.name)
            archive.add(record_of(job.path, f"tiny · {entry.cell.row} × {entry.cell.column}", cpu_seconds=1.0))
    return str(file), archive


def test_methods_are_ranked_within_their_league_over_tasks_all_have_run(board: tuple[str, Archive]) -> None:
    file, archive = board
    shared, personal = leagues(read_preset(file), archive)
    assert (shared.name, {s.method for s in shared.standings}) == ("one model for all", {"fedavg", "fedprox"})
    assert [s.method for s in personal.standings] == ["local"]
    assert shared.tasks == ("α = 1", "α = 0.1")
    first = shared.standings[0]
    for task in shared.tasks:
        assert sum(s.ranks[task] for s in shared.standings) == 3  # 1 + 2, or 1.5 twice
        amps = [record.curves["active"]["amp"][-1] for record in first.scores[task].records]
        assert first.scores[task].metrics["amp"] == pytest.approx(sum(a for a in amps if a is not None) / 2)
    fedavg = next(s for s in shared.standings if s.method == "fedavg")
    assert (fedavg.bytes, fedavg.time) == (1.0, 1.0)
    assert personal.standings[0].bytes is None or personal.standings[0].bytes < 1  # nothing is sent


def test_a_task_that_one_method_lacks_ranks_nobody(board: tuple[str, Archive], tmp_path: Path) -> None:
    file, archive = board
    fewer = Archive(tmp_path)
    for record in archive:
        if not (record.experiment["method"]["name"] == "fedprox" and record.experiment["partition"]["alpha"] == 1.0):
            fewer.add(record)
    shared = leagues(read_preset(file), fewer)[0]
    assert shared.tasks == ("α = 0.1",)


def test_ranks_and_bars_by_hand() -> None:
    """Places 1, 2.5, 2.5; bars join 1.0–1.5 and 1.5–2.4 where the difference is 1."""
    assert ranks({"a": 3.0, "b": 1.0, "c": 1.0}) == {"a": 1.0, "b": 2.5, "c": 2.5}
    assert cliques([2.4, 1.0, 1.5, 4.0], 1.0) == [(1.0, 1.5), (1.5, 2.4)]
    assert cliques([1.0, 2.0, 3.0], 5.0) == [(1.0, 3.0)]


def test_methods_are_ranked_by_fairness_too(board: tuple[str, Archive]) -> None:
    """Less FM is better, and more WLP: two methods have places 1 and 2 (or 1.5 each), so the means add to 3."""
    file, archive = board
    shared = leagues(read_preset(file), archive)[0]
    for metric, sign in (("fm", 1), ("wlp", -1)):
        assert sum(s.mean_ranks[metric] for s in shared.standings) == 3
        one, other = shared.standings
        better = [sign * (one.scores[t].metrics[metric] - other.scores[t].metrics[metric]) for t in shared.tasks]
        places = [1.5 if difference == 0 else 1.0 + (difference > 0) for difference in better]
        assert one.mean_ranks[metric] == sum(places) / 2
    assert [s.model for s in shared.standings] == ["active", "active"]
    assert all(s.same_split for s in shared.standings)


def _standing(archive: Archive, method: str, seeds: list[int], **changes: Any) -> Standing:
    first = archive.records[0]
    public = changes.pop("public", None)
    records = tuple(
        replace(first, experiment={**first.experiment, "seed": seed, "public": public}, **changes) for seed in seeds
    )
    score = Score({"amp": 0.5}, records, 1.0, None, "active")
    return Standing(method, {"easy": score}, {"easy": 1.0}, 1.0, 1.0, same_split="split" not in changes)


def test_the_board_says_whose_seeds_and_whose_split_differ(board: tuple[str, Archive]) -> None:
    archive = board[1]
    alike = [_standing(archive, name, [1, 2]) for name in ("fedavg", "fedprox")]
    odd = [_standing(archive, "moon", [1]), _standing(archive, "feddf", [1, 2], split="another", public=0.1)]
    same, mixed = (League("one", tuple(found), ("easy",), None, None) for found in (alike, [*alike, *odd]))
    assert leaderboard.titled(same, "easy") == "easy (2 seeds)"
    assert leaderboard.titled(mixed, "easy") == "easy (1–2 seeds)"
    assert leaderboard.footnotes(same, ["easy"]) == []
    assert leaderboard.footnotes(mixed, ["easy"]) == [
        "† feddf: `public = 0.1` of every class is no client's, so clients train and are tested on other samples than "
        "FedAvg's.",
        "Seeds differ on easy: most methods have seeds 1 2; moon has seed 1.",
    ]
    text = leaderboard.markdown(read_preset(board[0]), [mixed])
    assert "| feddf † | active | 1.00 |" in text
    assert "| fedavg | active | 1.00 |" in text


def test_methods_with_a_public_set_have_another_split_on_the_board_and_ccvr_its_own_numbers() -> None:
    found = leagues(read_preset("leaderboard/board"), Archive(ROOT / "results"))
    standings = {s.method: s for league in found for s in league.standings}
    assert {name for name, s in standings.items() if not s.same_split} == {
        name for name, method in methods.usable() if method.needs_public
    }
    own = {name: s.model for name, s in standings.items() if s.model not in ("active", "global", "personal")}
    assert own == {
        "ccvr": "calibrated", "centralised": "centralised", "fedkd": "mentee", "fedkf": "overall",
        "fedkf-minus": "overall", "fedsteady": "steady",
    }  # fmt: skip
    task = found[0].tasks[0]
    assert standings["ccvr"].scores[task].metrics != standings["fedavg"].scores[task].metrics


def test_all_data_in_one_place_is_on_the_board_without_a_rank() -> None:
    preset = read_preset("leaderboard/board")
    found = leagues(preset, Archive(ROOT / "results"))
    ranked, (yardstick,) = found[:-1], found[-1].standings
    assert yardstick.method not in {s.method for league in ranked for s in league.standings}
    assert (yardstick.method, yardstick.rank, yardstick.mean_ranks) == ("centralised", None, {})
    assert yardstick.scores.keys() >= set(ranked[0].tasks)
    assert all(s.among == len(league.standings) for league in ranked for s in league.standings)
    text = leaderboard.markdown(preset, found)
    assert "**All data in one place**, not ranked\n" in text
    assert "| centralised | centralised | – | – | – | – |" in text


def test_the_page_says_how_many_took_an_edge_of_the_rates(tmp_path: Path, board: tuple[str, Archive]) -> None:
    """FedAvg's documented rate is .01: .01 and 1 are one and a hundred times it, the edges; .03 and .3 are not."""
    tried = "Of 1×, 3×, 10×, 30×, 100× the documented rate, "
    for rates, said in {
        (0.01, 0.3): "1 of 2 tuned methods took the first or the last: one beyond may be better for them.",
        (1.0, 0.01): "2 of 2 tuned methods took the first or the last: one beyond may be better for them.",
        (0.03, 0.3): "none of 2 tuned methods took the first or the last.",
    }.items():
        file = tmp_path / f"{rates}.toml"
        file.write_text(BOARD + f"[tuned]\nfedavg = {rates[0]}\nfedprox = {rates[1]}\n")
        assert leaderboard.tuning(read_preset(str(file))) == tried + said
    assert leaderboard.tuning(read_preset(board[0])) == ""


def test_the_command_behind_a_row_runs_the_rows_tasks_with_their_seeds(board: tuple[str, Archive]) -> None:
    preset = read_preset(board[0])
    two, one = (_standing(board[1], "moon", seeds).scores["easy"] for seeds in ([1, 2], [1]))
    assert leaderboard.again(preset, ["fedavg", "moon"], {"α = 1": two, "b": one, "c": two}) == (
        "fedstill reproduce tiny --row fedavg --row moon --column 'α = 1' --column c --seeds 2\n"
        "fedstill reproduce tiny --row fedavg --row moon --column b --seeds 1"
    )


@pytest.fixture(scope="module")
def own_board(board: tuple[str, Archive], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same board with labels of one's own: those of the rows are no methods' names."""
    text = BOARD.replace('label = "fedavg"', 'label = "FedAvg [1]"').replace('"fedavg"\nright', '"FedAvg [1]"\nright')
    text = text.replace('label = "α = 1"', 'label = "α [1]"')
    file = tmp_path_factory.mktemp("own board") / "tiny.toml"
    file.write_text(text + '[tuned]\n"FedAvg [1]" = 0.3\nfedprox = 1.0\n')
    return file


def test_a_board_with_labels_of_ones_own_is_compared_with_fedavg_too(
    board: tuple[str, Archive], own_board: Path
) -> None:
    shared, personal = leagues(read_preset(str(own_board)), board[1])
    standings = {s.method: s for s in shared.standings}
    assert (standings["FedAvg [1]"].bytes, standings["FedAvg [1]"].time) == (1.0, 1.0)
    assert standings["fedprox"].bytes == 1.0
    assert personal.standings[0].same_split
    assert leaderboard.tuning(read_preset(str(own_board))).endswith(
        "1 of 2 tuned methods took the first or the last: one beyond may be better for them."
    )


def test_another_split_than_fedavgs_is_marked_on_a_board_with_labels_of_ones_own(
    board: tuple[str, Archive], own_board: Path, tmp_path: Path
) -> None:
    other = Archive(tmp_path)
    for record in board[1]:
        prox = record.experiment["method"]["name"] == "fedprox"
        other.add(replace(record, split="another") if prox else record)
    shared = leagues(read_preset(str(own_board)), other)[0]
    assert {s.method for s in shared.standings if not s.same_split} == {"fedprox"}


def test_the_commands_of_a_board_of_ones_own_can_be_typed(
    board: tuple[str, Archive], own_board: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They name the file that was given, and a label with brackets as one that is meant as it stands."""
    page = tmp_path / "board.html"
    words = ["leaderboard", str(own_board), "--results", str(board[1].folder), "-o", str(page)]
    assert _printed(words, capsys) == f"{page}\n"
    made = set(re.findall(r"fedstill reproduce [^\n\"]*", unescape(page.read_text())))
    assert made
    for line in made:
        found = shlex.split(line)
        assert found[2] == str(own_board)
        named = [
            [found[place + 1] for place, word in enumerate(found) if word == option] for option in ("--row", "--column")
        ]
        entries = plan(read_preset(found[2]), tmp_path, rows=named[0], columns=named[1])
        assert {entry.cell.row for entry in entries} <= {"FedAvg [1]", "fedprox", "local"}
        assert len(entries) == len(named[0]) * len(named[1])
    assert f"fedstill leaderboard '{own_board}'" in unescape(page.read_text())


def test_the_page_is_offline_sortable_and_holds_the_command_behind_every_number(
    board: tuple[str, Archive], tmp_path: Path
) -> None:
    file, archive = board
    found = leagues(read_preset(file), archive)
    text = leaderboard.page(read_preset(file), found, tmp_path / "board.html").read_text()
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text
    record = found[0].standings[0].scores["α = 1"].records[0]
    assert f"# {record.id}" in text
    assert "--alpha" in text or "alpha = 1.0" in text
    assert "α = 1 (2 seeds)<br>AMP" in text
    behind_ranks = (
        "fedstill reproduce tiny --row fedprox --column 'α = 1' --column 'α = 0.1' --seeds 2\nfedstill leaderboard"
    )
    assert behind_ranks in unescape(text)
    assert 'class="board"' in text
    assert "critical difference" in leaderboard.page(read_preset(file), found, tmp_path / "b.html").read_text().lower()


def test_a_page_that_says_something_else_than_the_records_is_found_and_mended(
    board: tuple[str, Archive], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, archive = board
    page = tmp_path / "page.md"
    page.write_text(
        f"before\n<!-- results table {file} columns='α = 1' -->\ntyped by hand\n<!-- end of results -->\n"
        f"<!-- results claims {file} -->\n<!-- end of results -->\n"
        f"<!-- results leaderboard {file} -->\n<!-- end of results -->\nafter\n"
    )
    words = ["results", "pages", str(page), "--results", str(archive.folder)]
    for extra, code in ((["--check"], 1), ([], 0), (["--check"], 0)):
        with pytest.raises(SystemExit) as left:
            cli.main([*words, *extra])
        assert left.value.code == code
    text = page.read_text()
    amps = [r.curves["active"]["amp"][-1] for r in archive if r.cell == "tiny · fedavg × α = 1"]
    mean = 100 * sum(a for a in amps if a is not None) / 2
    assert f"| fedavg | {mean:.2f} ±" in text
    assert "typed by hand" not in text
    assert re.search(
        r"\| FedAvg is better than FedProx \| \d of 2 held, \d not, largest p = [\d.e-]+, 2 seeds \|", text
    )
    assert "**One model for all**" in text
    assert (text.startswith("before\n"), text.endswith("after\n")) == (True, True)
    first = archive.records[0]
    other = Archive(tmp_path / "other")
    for record in archive:
        curves = {m: {k: [0.5 for _ in v] for k, v in c.items()} for m, c in record.curves.items()}
        other.add(replace(record, curves=curves) if record is first else record)
    assert result_pages.stale([page], other) == [page]


def test_a_grid_has_rows_by_columns_of_one_metric(board: tuple[str, Archive]) -> None:
    file, archive = board
    lines = result_pages.made(f"grid {file} metric=wlp rows='fedavg|local'", archive).splitlines()
    assert lines[0] == "A tiny board; WLP ↑ (%), 2 seeds"
    assert lines[2] == "|  | α = 1 | α = 0.1 |"
    worst = [r.curves["personal"]["wlp"][-1] for r in archive if r.cell == "tiny · local × α = 0.1"]
    mean = 100 * sum(w for w in worst if w is not None) / 2
    assert lines[-1].startswith("| local | ")
    assert f"| {mean:.2f}" in lines[-1]
    assert len(lines) == 6  # title, empty, head, rule, two rows
    assert result_pages.made(f"grid {file}", Archive(archive.folder / "none")) == "No record of tiny yet."


def test_evidence_says_where_the_compared_have_other_samples(
    board: tuple[str, Archive], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FedProx has another split in one seed of α = 1: of that column it is said, of the other not."""
    file, archive = board
    other = Archive(tmp_path)
    for record in archive:
        odd = record.cell == "tiny · fedprox × α = 1" and record.experiment["seed"] == 2
        other.add(replace(record, split="another") if odd else record)
    for found, columns, said in ((archive, "*", False), (other, "α = 1", True), (other, "α = 0.1", False)):
        line = result_pages.made(f"claims {file} columns='{columns}'", found).splitlines()[-1]
        assert line.endswith(", 2 seeds; on other samples (†) |") == said
        command = ["results", "table", file, "--results", str(found.folder), "--column", columns]
        assert ("on other samples (†)" in _printed(command, capsys)) == said


def test_a_bar_in_a_label_or_a_claim_begins_no_cell(board: tuple[str, Archive], tmp_path: Path) -> None:
    file = tmp_path / "tiny.toml"
    text = BOARD.replace('"fedavg"\nmethod', '"P(a|b)"\nmethod').replace('"α = 1"', '"α | 1"')
    file.write_text(text.replace('left = "fedavg"', 'left = "P(a|b)"').replace("is better", "| FedProx is better"))
    cells = {
        line: len(re.split(r"(?<!\\)\|", line)) - 2
        for kind in ("table", "grid", "claims")
        for line in result_pages.made(f"{kind} {file}", board[1]).splitlines()
        if line.startswith("|")
    }
    assert sorted(set(cells.values())) == [3, 6], "a claim's and the grid's; the metrics', with row and seeds"
    for words in ("| P(a\\|b) | ", "| α \\| 1 |", "FedAvg \\| FedProx is better"):
        assert any(words in line for line in cells)


def test_rows_choose_the_claims_that_are_made_of_them(board: tuple[str, Archive]) -> None:
    file, archive = board
    assert "FedAvg is better than FedProx" in result_pages.made(f"claims {file} rows=fedavg", archive)
    with pytest.raises(UsageError, match="makes no claim of local"):
        result_pages.made(f"claims {file} rows=local", archive)


def test_columns_narrow_a_claim_which_then_says_so(board: tuple[str, Archive]) -> None:
    """The claim is of two columns; of one it rests on one comparison, and with both named it is the whole claim."""
    file, archive = board
    narrowed = result_pages.made(f"claims {file} rows='fed*' columns='α = 0.1'", archive)
    assert "| FedAvg is better than FedProx (α = 0.1) | difference 0 points in every seed, " in narrowed
    assert result_pages.made(f"claims {file} columns='α*'", archive) == result_pages.made(f"claims {file}", archive)
    with pytest.raises(UsageError, match="makes no claim of anything"):
        result_pages.made(f"claims {file} columns='β = 1'", archive)


def test_a_label_with_brackets_is_a_label_and_no_pattern(tmp_path: Path) -> None:
    file = tmp_path / "brackets.toml"
    file.write_text(
        f"""
title = "Brackets"
kind = "table"
metrics = ["amp"]
{preset_base()}
[[rows]]
label = "FedProx [μ = 0.1]"
method = {{ name = "fedprox", mu = 0.1 }}
model = "active"
[[columns]]
label = "α [1]"
"""
    )
    found = result_pages.table_numbers(read_preset(str(file)), Archive(tmp_path / "none"), result_pages.Choice())
    assert [(number.row, number.column) for number in found] == [("FedProx [μ = 0.1]", "α [1]")]


def test_a_claim_that_grows_from_one_column_to_another_needs_both() -> None:
    claim = Claim("ahead", ("a",), ("b",), "grows", ("amp",), ("x", "y"), "every", 1, None)
    assert claim.within(["x"]) is None
    assert claim.within(["x", "y"]) is claim


def _judgement(differences: list[float]) -> Judgement:
    claim = Claim("A over B", ("a",), ("b",), "better", ("amp",), ("x",), "every", 1, None)
    statement = compared("a over b", dict(enumerate(differences)))
    return Judgement(claim, statement.verdict, (statement,))


def test_a_pages_first_line_says_whether_the_claim_is_reached() -> None:
    """Differences 1, 2, 3: p = .0371, held; −1, −2, −3: not held; −1, 0, 1: mean 0, not decided; none: not measured."""
    held, open_, none = _judgement([1.0, 2.0, 3.0]), _judgement([-1.0, 0.0, 1.0]), _judgement([])
    failed = _judgement([-1.0, -2.0, -3.0])
    assert sentence([none]) == "Its paper's claim has not been measured here yet."
    assert sentence([held]).startswith("**Reaches its paper's claim here.** A over B: held (mean difference 2, 90 % ")
    assert sentence([held, none]).endswith("Not all of it has been measured yet.")
    assert sentence([open_]).startswith("**Not shown to reach its paper's claim here.** A over B: not decided (")
    assert sentence([held, open_, failed]).split("\n") == [
        "**Reaches only a part of what its paper claims here: 1 of 3.**",
        "",
        "- not held: A over B",
        "- not decided: A over B",
        "- held: A over B",
    ]
    shown = (
        "**Shown to reach 1 of {} of its paper's claims here; the other{} not decided.**\n\n- not decided: A over B\n"
    )
    assert sentence([held, open_]).startswith(shown.format(2, " is")), "nothing is refuted"
    assert sentence([held, open_, open_]).startswith(shown.format(3, "s are"))
    assert sentence([open_, failed]).startswith("**Does not reach its paper's claim here.**\n\n- not held: A over B\n")


def test_what_this_project_claims_itself_does_not_count_in_a_pages_first_line() -> None:
    failed, held = _judgement([-1.0, -2.0, -3.0]), _judgement([1.0, 2.0, 3.0])
    ours = replace(held, claim=replace(held.claim, ours=True))
    assert sentence([failed, ours]) == sentence([failed])
    assert sentence([ours]) == "Its paper's claim has not been measured here yet."


SECOND_WAVE = (
    "fedntd", "fedlc", "feddyn", "fedproto", "fedtgp", "fedgh", "fml", "fedkd", "lg-fedavg", "ds-fl", "fedhkd",
)  # fmt: skip


@pytest.mark.parametrize("method", [*SECOND_WAVE, "dense", "co-boosting"])
def test_a_methods_page_opens_with_its_verdict_and_shows_an_image_task_and_another(method: str) -> None:
    blocks = (ROOT / "docs" / "methods" / f"{method}.md").read_text().split("\n\n")
    assert blocks[1].startswith("<!-- results verdict ")
    text = "\n\n".join(blocks)
    preset = "leaderboard/board" if method in SECOND_WAVE else "oneshot/dense-coboosting"
    columns = {c for claim in claims(preset, read_preset(preset).content) for c in claim.columns}
    assert any("digits" in column for column in columns)
    assert "heart disease, 4 hospitals" in columns
    assert f"<!-- results table {preset}" in text
    assert f"<!-- results claims {preset}" in text
    assert "Typed, not made from records" not in text


def test_a_misspelt_marker_is_an_error(board: tuple[str, Archive], tmp_path: Path) -> None:
    _, archive = board
    page = tmp_path / "page.md"
    page.write_text("<!-- results tabel fedkf/table5 -->\n<!-- end of results -->\n")
    with pytest.raises(UsageError, match=r"page\.md: unknown kind of results 'tabel'"):
        result_pages.stale([page], archive)
    with pytest.raises(UsageError, match="unknown kind of results 'tabel'; did you mean table"):
        result_pages.remade("<!-- results tabel fedkf/table5 -->\n<!-- end of results -->\n", archive)
    with pytest.raises(UsageError, match="has no `<!-- end of results -->`"):
        result_pages.remade("<!-- results table fedkf/table5 -->\n", archive)
    for words, why in (
        ("table fedkf/table5 rounds=abc", "rounds = 'abc': must be a whole number ≥ 1"),
        ("table fedkf/table5 rounds=0", "rounds = '0': must be a whole number ≥ 1"),
        ("table fedkf/table5 rows='FedKF", "No closing quotation"),
        ("", "names nothing"),
    ):
        with pytest.raises(UsageError, match=why):
            result_pages.remade(f"<!-- results {words} -->\n<!-- end of results -->\n", archive)


def test_tuning_gives_every_method_as_many_trials_and_takes_the_best(board: tuple[str, Archive]) -> None:
    told: list[str] = []
    rates = tuned(read_preset(board[0]), ["fedavg"], told.append)
    trials = dict(part.split(" → ") for part in told[0].removeprefix("fedavg: ").split(", "))
    assert sorted(map(float, trials)) == [0.01, 0.03, 0.1, 0.3, 1.0]
    assert rates == {"fedavg": float(max(trials, key=lambda rate: float(trials[rate])))}


def test_rows_to_tune_are_chosen_as_elsewhere_and_their_rates_can_be_read_again(
    own_board: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(
        UsageError, match=r"row = nobody, fedavg: .* has no such row on α \[1\]; there are FedAvg \[1\], fed"
    ):
        tuned(read_preset(str(own_board)), ["nobody", "fedavg"])
    rates = tomllib.loads(_printed(["leaderboard", str(own_board), "--tune", "--row", "FEDAVG*"], capsys))["tuned"]
    assert list(rates) == ["FedAvg [1]"]


def test_the_claims_are_judged_from_records_on_the_command_line(
    board: tuple[str, Archive], capsys: pytest.CaptureFixture[str]
) -> None:
    file, archive = board
    with pytest.raises(SystemExit):
        cli.main(["results", "table", file, "--results", str(archive.folder), "--json"])
    found = json.loads(capsys.readouterr().out)
    (claim,) = found["claims"]
    assert claim["verdict"] in ("held", "not held", "not decided")
    assert len(claim["statements"]) == 2
    assert all(len(s["differences"]) == 2 for s in claim["statements"])


def _printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as left:
        cli.main(words)
    assert left.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("columns", [[], ["α = 0.1"]])
def test_the_command_beside_a_block_prints_the_verdict_of_the_page(
    board: tuple[str, Archive], columns: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The claim is of two columns: with one of them named, page and commands judge it by that one, and say so."""
    file, archive = board
    line = result_pages.made(f"claims {file} rows='fed*' columns='{'|'.join(columns)}'", archive).splitlines()[-1]
    mark, text, evidence = line.strip("| ").split(" | ")
    chosen = ["--row", "FED*", *(word for column in columns for word in ("--column", column))]
    runs, records = str(archive.folder.parent), str(archive.folder)
    for words in (
        ["reproduce", file, *chosen, "--seeds", "2", "--out", runs],  # all of it has been run
        ["results", "table", file, *chosen, "--results", records],
    ):
        assert _printed(words, capsys).splitlines()[-1] == f"{mark}: {text} ({evidence})"


def test_rows_and_columns_choose_what_a_table_from_the_records_shows(
    board: tuple[str, Archive], capsys: pytest.CaptureFixture[str]
) -> None:
    """FedAvg is compared with FedProx, whose row is not shown: by the records, as on a page."""
    file, archive = board
    words = ["results", "table", file, "--results", str(archive.folder), "--json", "--column", "α = 1"]
    found = json.loads(_printed([*words, "--row", "fedavg"], capsys))
    assert {(n["row"], n["column"]) for n in found["numbers"]} == {("fedavg", "α = 1")}
    ((statement,),) = [claim["statements"] for claim in found["claims"]]
    assert (statement["text"], len(statement["differences"])) == ("fedavg over fedprox, α = 1, amp", 2)
    assert json.loads(_printed([*words, "--row", "local"], capsys))["claims"] == []
    with pytest.raises(SystemExit):
        cli.main([*words, "--row", "fedavgg"])
    assert "no cell is left" in capsys.readouterr().err


def test_what_is_read_beside_fedavg_is_there_where_its_row_is_not_shown(
    board: tuple[str, Archive], tmp_path: Path
) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(BOARD.replace('["amp", "fm", "wlp", "accuracy"]', '["amp", "slowdown"]'))
    whole, alone = (
        result_pages.table_numbers(read_preset(str(file)), board[1], result_pages.Choice(rows))
        for rows in ((), ("fedprox",))
    )
    assert alone == [number for number in whole if number.row == "fedprox"]
    assert [number.mean for number in alone if number.metric == "slowdown"] == [1.0, 1.0]


def test_a_table_looks_for_as_many_seeds_as_a_page(
    board: tuple[str, Archive], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, archive = board
    more = Archive(tmp_path)
    for first in (record for record in archive if record.experiment["seed"] == 1):
        for seed in range(1, 8):
            more.add(replace(first, id=f"{first.id}{seed}", experiment={**first.experiment, "seed": seed}))
    page = result_pages.made(f"table {file}", more)
    found = json.loads(_printed(["results", "table", file, "--results", str(more.folder), "--json"], capsys))
    assert {number["seeds"] for number in found["numbers"]} == {RECORDED_SEEDS}
    assert page.count(f" | {RECORDED_SEEDS} |") == 6


def test_every_page_says_what_the_records_say() -> None:
    """`make results` writes them."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    assert result_pages.stale(pages, Archive(ROOT / "results")) == []


def test_no_table_of_results_is_typed() -> None:
    """Rows with a mean and a spread, or an interval, stand between markers."""
    typed = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        made = r"^<!-- (results|measured\.py|peers\.py).*?^<!-- end of \w+ -->"
        by_hand = re.sub(made, "", page.read_text(), flags=re.DOTALL | re.M)
        typed += [f"{page.name}: {row}" for row in re.findall(r"^\|.*(?:±|\d \(\d[\d.]* to ).*", by_hand, re.M)]
    assert typed == []
