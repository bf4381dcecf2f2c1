"""Publishing a model: its card says what the run says, and what comes back predicts the same."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from local_hub import Hub, local_hub
from looked_at import made, rows

from fedstill import cli
from fedstill.core.errors import DataError, RunError, UsageError
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
