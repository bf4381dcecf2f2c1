"""Publishing a model: its card says what the run says, and what comes back predicts the same."""

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from local_hub import Hub, local_hub
from looked_at import made, rows
from smallest import small_method

import fedstill as fs
from fedstill import cli
from fedstill.core.errors import DataError, RunError, UsageError
from fedstill.experiment.export import write_model
from fedstill.experiment.predict_rows import classify_rows
from fedstill.experiment.ready import load_model
from fedstill.experiment.result import Result
from fedstill.report.model_card import card
from fedstill.report.privacy import spent
from fedstill.report.publish import pull, push


@pytest.fixture(name="run")
def _run() -> Path:
    return made() / "fedavg-1"


def same(one: Path, other: Path) -> bool:
    x = torch.arange(2 * 64, dtype=torch.uint8).reshape(2, 1, 8, 8) % 17
    return torch.equal(load_model(one).probabilities(x), load_model(other).probabilities(x))


def test_a_model_is_pushed_to_a_folder_pulled_from_it_and_predicts_the_same(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["push", str(run), str(tmp_path / "out")], ["pull", str(tmp_path / "out"), str(tmp_path / "in")]):
        with pytest.raises(SystemExit) as left:
            cli.main(words)
        assert not left.value.code
    assert same(run, tmp_path / "in")
    np.save(tmp_path / "x.npy", np.zeros((1, 1, 8, 8), np.uint8))
    capsys.readouterr()
    answers = []
    for folder in (run, tmp_path / "in"):
        with pytest.raises(SystemExit):
            cli.main(["predict", str(folder), str(tmp_path / "x.npy"), "--json"])
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0] == answers[1]
    signature = json.loads((tmp_path / "in" / "signature.json").read_text())
    assert (signature["sizes"], signature["of"]) == ([], [0])  # nobody learns how many samples a client has


def test_the_card_has_data_metrics_of_every_client_what_left_and_privacy(run: Path, tmp_path: Path) -> None:
    push(run, str(tmp_path / "out"), license="mit")
    text = (tmp_path / "out" / "README.md").read_text()
    last = rows(run)[-1]["models"]["overall"]
    assert text.startswith("---\nlibrary_name: fedstill\n")
    assert 'license: "mit"' in text
    assert f"digits, fingerprint `{Result.read(run).experiment['fingerprint']}`" in text
    assert f"| AMP ↑ (%) | {100 * last['amp']:.2f} |" in text
    for client, value in enumerate(last["accuracy_per_client"]):
        assert f"| {client} | {value:.4f} |" in text
    sent = sum(row["bytes"]["up"]["weights"] for row in rows(run))
    assert f"| `weights` | model parameters | {sent / 1e6:.1f} MB |" in text or f"{sent / 1e3:.1f} kB |" in text
    assert "No differential privacy was asked for" in text
    assert str(tmp_path) not in text


def test_no_folder_of_this_machine_is_published(run: Path) -> None:
    ready, result = load_model(run), Result.read(run)
    places = {
        "data": ["/home/me/a.npz", "/home/me/b.npz"],
        "public": "/home/me/p.csv",
        "partition": {"name": "saved", "path": "/home/me/split.json"},
        "reading": {"name": "columns", "tokenizer": "/home/me/tokens.json"},
    }
    text = card(Result({**result.experiment, **places}, result.rows, run), ready.name, ready.signature, "x")
    for name in ("a.npz", "b.npz", "p.csv", "split.json", "tokens.json"):
        assert f'"{name}"' in text
    assert "/home" not in text


def test_the_card_of_a_private_run_says_what_was_spent(run: Path) -> None:
    """ε of client 10 stands at 2 since round 1; client 2 spent 1, then 3: the card has the last of each."""
    result = Result.read(run)
    facts = [{"epsilon_spent": {"2": 1.0, "10": 2.0}, "delta": 1e-5}, {"epsilon_spent": {"2": 3.0}, "delta": 1e-5}]
    lines = [{**row, "facts": told} for row, told in zip(result.rows, facts, strict=False)]
    assert spent(lines)[-1].epsilon == {"2": 3.0, "10": 2.0}
    private = Result(result.experiment, lines, result.run_dir)
    text = card(private, "overall", load_model(run).signature, "x")
    assert "| 2 | 3 | 1e-05 |\n| 10 | 2 | 1e-05 |" in text


def test_a_model_goes_to_the_hub_and_comes_back(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_TOKEN", "hf_local")
    with local_hub() as address:
        assert push(run, "hf://somebody/digits", endpoint=address) == f"{address}/somebody/digits"
        files = Hub.repositories["somebody/digits"]
        assert sorted(files) == ["README.md", "checksums.json", "model.safetensors", "signature.json"]
        assert Hub.private["somebody/digits"]
        assert Hub.tokens == {"Bearer hf_local"}
        files["evil.py"] = b"print('hello')"
        assert "hf://somebody/digits → " in pull("hf://somebody/digits", tmp_path / "in", endpoint=address)
        assert sorted(p.name for p in (tmp_path / "in").iterdir()) == sorted(set(files) - {"evil.py"})
        assert same(run, tmp_path / "in")
        with pytest.raises(RunError, match=r"the hub refused: .*404"):
            pull("hf://somebody/other", tmp_path / "other", endpoint=address)


@pytest.mark.parametrize("name", ["model.safetensors", "signature.json"])
def test_what_was_changed_on_its_way_is_refused_and_nothing_is_left(run: Path, tmp_path: Path, name: str) -> None:
    push(run, str(tmp_path / "out"))
    file = tmp_path / "out" / name
    file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises(DataError, match=f"{name} is not what was published"):
        pull(str(tmp_path / "out"), tmp_path / "in")
    assert not (tmp_path / "in").exists()


def test_what_cannot_be_published_or_got_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds something already"):
        push(run, str(tmp_path / "mine"))
    with pytest.raises(UsageError, match="must be hf://owner/name"):
        push(run, "hf://digits")
    with pytest.raises(UsageError, match="no such folder; on the hub"):
        pull("somebody/digits", tmp_path / "in")
    with pytest.raises(DataError, match="is no model that fedstill published"):
        pull(str(tmp_path / "mine"), tmp_path / "in")


def packaged(run: Path, room: Path) -> tuple[Path, Path]:
    """The same model as a published folder and as a file by itself."""
    push(run, str(room / "pushed"))
    write_model(run, room / "alone.safetensors")
    return room / "pushed", room / "alone.safetensors"


def trained_on(frame: pandas.DataFrame, room: Path, **reading: Any) -> Path:
    """A run on these rows: each site a client, where there is one, else two alike."""
    settings = {} if "site" in reading else {"clients": 2, "partition": "iid"}
    method = small_method("fedavg", epochs=8, optimizer="adam", lr=0.01)
    fs.run(method, data=frame, rounds=1, workers="inline", out=room, name="run", **settings, **reading)
    return room / "run"


def test_a_slash_in_the_name_of_a_column_and_of_a_category_stays(tmp_path: Path) -> None:
    """Columns and categories are found by their names."""
    rng = np.random.default_rng(0)
    receptors = rng.choice(["ER+/HER2+", "ER-/HER2+"], 160)
    chol = rng.normal(200, 40, 160)
    ill = np.where(receptors == "ER+/HER2+", "a/b", "c/b")
    frame = pandas.DataFrame({"chol mg/dL": chol, "receptor": receptors, "out/come": ill})
    run = trained_on(frame, tmp_path, label="out/come")
    frame.to_csv(tmp_path / "new.csv", index=False)
    wanted = classify_rows(run, tmp_path / "new.csv")
    assert len({row["class"] for row in wanted["rows"]}) == 2
    for model in packaged(run, tmp_path):
        assert classify_rows(model, tmp_path / "new.csv") == wanted
    card = (tmp_path / "pushed" / "README.md").read_text()
    assert 'label = "out/come"' in card
    assert "fedstill predict model rows.csv" in card


def test_a_published_model_reads_windows_and_texts_as_its_run_does(tmp_path: Path) -> None:
    """Rows of two people, mixed and out of order: read as one file without roles there would be other windows."""
    rng = np.random.default_rng(0)
    who, t = np.tile(["ann", "bob"], 120), np.repeat(np.arange(120), 2)
    state = np.where((t // 20) % 2, "walks", "rests")
    wave = np.where(state == "walks", np.sin(t * 1.5) * 3, 0.1) + rng.normal(0, 0.05, 240)
    frame = pandas.DataFrame({"who": who, "t": t, "x": wave, "does": state}).sample(frac=1, random_state=1)
    run = trained_on(frame, tmp_path, label="does", time="t", window=4, site="who")
    frame.drop(columns="does").to_csv(tmp_path / "new.csv", index=False)
    wanted = classify_rows(run, tmp_path / "new.csv")
    assert len(wanted["rows"]) == 60
    for model in packaged(run, tmp_path):
        assert classify_rows(model, tmp_path / "new.csv") == wanted
        assert (load_model(model).predict(frame) == load_model(run).predict(frame)).all()
    assert "fedstill predict model rows.csv" in (tmp_path / "pushed" / "README.md").read_text()

    says = np.where(rng.random(120) < 0.5, "good", "bad")
    texts = pandas.DataFrame({"by": rng.choice(["x y", "z"], 120), "body": [f"it is {s}" for s in says], "says": says})
    (tmp_path / "texts").mkdir()
    run = trained_on(texts, tmp_path / "texts", label="says", text="body")
    texts.drop(columns="says").to_csv(tmp_path / "texts.csv", index=False)
    wanted = classify_rows(run, tmp_path / "texts.csv")
    for model in packaged(run, tmp_path / "texts"):
        assert classify_rows(model, tmp_path / "texts.csv") == wanted
    assert "fedstill predict model texts.csv" in (tmp_path / "texts" / "pushed" / "README.md").read_text()


def test_no_persons_number_is_published_and_an_older_folder_is_read_still(tmp_path: Path) -> None:
    """The largest number among rows is somebody's; the model needs it nowhere. Folders of before have it in them."""
    frame = pandas.DataFrame(
        {"age": [*range(60), 292.5], "sex": ["f", "m"] * 30 + ["f"], "ill": ["no", "yes"] * 30 + ["no"]}
    )
    run = trained_on(frame, tmp_path, label="ill")
    pushed, alone = packaged(run, tmp_path)
    published = [file.read_bytes() for file in (*pushed.iterdir(), alone)]
    assert not any(b"292" in content for content in published)
    write_model(run, tmp_path / "model.pt2")
    frame.drop(columns="ill").to_csv(tmp_path / "new.csv", index=False)
    wanted = classify_rows(run, tmp_path / "new.csv")
    old = json.loads((pushed / "signature.json").read_text())
    del old["reading"]
    (pushed / "signature.json").write_text(json.dumps({**old, "low": 0.0, "high": 292.5}))
    assert classify_rows(pushed, tmp_path / "new.csv") == wanted


class Tied(torch.nn.Module):
    """One layer in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(64, 64)
        self.b = self.a
        self.last = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.b(torch.relu(self.a(x.flatten(1))))))


def test_a_model_with_a_layer_in_two_places_is_published(tmp_path: Path) -> None:
    method = small_method("fedavg", epochs=2)
    settings = {"data": "digits", "samples": 200, "clients": 2, "partition": "iid", "rounds": 1, "workers": "inline"}
    fs.run(method, model=Tied, out=tmp_path, name="run", **settings)
    ready = load_model(tmp_path / "run", model=Tied)
    x = fs.load("digits").train.x[:20]
    write_model(tmp_path / "run", tmp_path / "tied.safetensors", model=Tied)
    assert torch.equal(load_model(tmp_path / "tied.safetensors", model=Tied)(x), ready(x))


@pytest.mark.parametrize("broken", ["fedstill.core.record.os.fsync", "fedstill.report.publish._checksum"])
def test_on_a_full_disk_nothing_is_left(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(broken, full)
    with pytest.raises(UsageError, match=r"out: cannot write there \(No space left|safetensors: cannot write there"):
        push(run, str(tmp_path / "out"))
    if "fsync" in broken:
        with pytest.raises(UsageError, match=r"alone.safetensors: cannot write there \(No space left"):
            write_model(run, tmp_path / "alone.safetensors")
    assert list(tmp_path.iterdir()) == []
