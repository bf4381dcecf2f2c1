"""The user's commands, end to end: what they print, what they write, how they fail."""

import json
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import click
import numpy as np
import pytest
import typer
from PIL import Image

from fedstill import cli_app
from fedstill.cli import main
from fedstill.experiment.config import Experiment
from fedstill.report.catalogue import methods

SMALL = "--data digits --samples 400 --clients 6 --active 0.5 --alpha 0.5 --rounds 2 --workers inline --set epochs=1"
RUN = f"run fedavg {SMALL}"


def call(words: str | list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as leave:
        main(words.split() if isinstance(words, str) else words)
    out, err = capsys.readouterr()
    return int(leave.value.code or 0), out, err


@pytest.fixture
def a_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    code, _, err = call(f"{RUN} --out {runs} --name first", capsys)
    assert code == 0, err
    return runs / "first"


def test_run_prints_one_json_document_and_nothing_else(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(f"{RUN} --seed 3 --set lr=0.05 --drop 0.1 --json --out {runs}", capsys)
    assert code == 0
    found = json.loads(out)
    assert (found["method"], found["data"], found["seed"], found["rounds"]) == ("fedavg", "digits", 3, 2)
    assert found["experiment"]["method"]["lr"] == 0.05
    assert found["experiment"]["drop"] == 0.1
    assert set(found["models"]) == {"active", "overall"}
    assert {"amp", "fm", "wlp", "accuracy_per_client"} <= found["models"]["active"].keys()
    assert found["bytes"].keys() == {"down", "up"}
    assert Path(found["run_dir"]).is_dir()


def test_a_run_is_shown_resumed_compared_used(a_run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = call(f"resume {a_run} --rounds 3", capsys)
    assert code == 0
    assert "overall" in out
    assert "3 rounds in" in out
    code, out, _ = call(f"compare {a_run} --json", capsys)
    rows = json.loads(out)
    assert [r["model"] for r in rows] == ["active", "overall"]
    last = json.loads((a_run / "result.json").read_text())["models"]["active"]
    assert rows[0]["amp"]["mean"] == last["amp"]
    for form in ("--csv", "--markdown", "--latex", ""):
        code, out, _ = call(f"compare {a_run} {form}", capsys)
        assert code == 0
        assert "fedavg" in out
    Image.fromarray(np.full((20, 20), 200, np.uint8)).save(tmp_path / "image.png")
    code, out, _ = call(f"predict {a_run} {tmp_path / 'image.png'} --json", capsys)
    found = json.loads(out)
    assert found["model"] == "overall"
    assert sum(found["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    code, out, _ = call(f"export {a_run} {tmp_path / 'model.safetensors'} --model active", capsys)
    assert code == 0
    assert out.startswith("active → ")
    assert (tmp_path / "model.safetensors").stat().st_size > 1000


def test_an_exported_onnx_model_gives_the_same_logits(
    a_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    import torch

    from fedstill.experiment.ready import load_model

    # the exporter itself warns of what it will change some day
    script = f"from fedstill.cli import main; main(['export', {str(a_run)!r}, {str(tmp_path / 'model.onnx')!r}])"
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, capture_output=True)
    x = torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8)
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    found = session.run(None, {"inputs": x.numpy()})[0]
    assert np.allclose(found, load_model(a_run)(x).detach().numpy(), atol=1e-4)


def test_an_experiment_file_runs_as_the_same_command_would(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = call("show fedavg --toml", capsys)
    assert code == 0
    (tmp_path / "experiment.toml").write_text(out)
    call(f"run {tmp_path / 'experiment.toml'} {SMALL} --out {runs} --name file", capsys)
    call(f"{RUN} --out {runs} --name words", capsys)
    a, b = (json.loads((runs / n / "result.json").read_text())["models"] for n in ("file", "words"))
    assert a == b


@pytest.mark.parametrize(
    "kind", ["methods", "models", "data", "partitions", "gathers", "attacks", "generators", "presets"]
)
def test_ls_lists_every_kind(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(f"ls {kind} --json", capsys)
    rows = json.loads(out)
    assert code == 0
    assert rows
    assert all(row["about"] for row in rows), "a line on each"
    code, out, _ = call(f"ls {kind}", capsys)
    assert rows[0]["name"] in out


@pytest.mark.parametrize("name", sorted(methods))
def test_show_says_what_leaves_a_client(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(f"show {name} --json", capsys)
    found = json.loads(out)
    assert code == 0
    assert found["leaves_client"]
    assert found["paper"]
    assert all(s["about"] for s in found["settings"]), "every setting says what it means"
    code, out, _ = call(f"show {name}", capsys)
    assert "what leaves a client" in out


def test_show_knows_presets(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call("show fedkf/table5 --json", capsys)
    assert code == 0
    assert json.loads(out)["content"]["base"]["data"] == "emnist-letters"
    code, out, _ = call("show fedkf/table5", capsys)
    assert "fedstill reproduce fedkf/table5" in out
    assert "FedKF (OCA)" in out


def test_doctor_knows_the_embedded_data(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call("doctor --json", capsys)
    found = json.loads(out)
    assert code == 0
    assert found["data"]["mnist-5k"]
    assert found["data"]["digits"]
    project = Path(__file__).parents[1] / "pyproject.toml"
    extras = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(found["extras"]) == set(extras) - {"dev", "docs", "release"}
    code, out, _ = call("doctor", capsys)
    assert "mnist-5k" in out


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        ("run fedavg --alpha 0", 2, "fedstill: alpha = 0.0: must be > 0"),
        ("run fedavg --active 30 --clients 20", 2, "fedstill: active = 30: there are only 20 clients"),
        ("run fedvg", 2, "fedstill: unknown method 'fedvg'; did you mean fedavg?"),
        ("run fedavg --data minst", 2, "fedstill: unknown data set 'minst'; did you mean mnist?"),
        ("run fedavg --data digits --model lenet6", 2, "fedstill: unknown model 'lenet6'"),
        ("run fedavg --set lr", 2, "fedstill: --set 'lr': must be name=value"),
        ("run fedavg --set lr=fast", 2, "fedstill: lr = 'fast': must be a number"),
        ("run nowhere.toml", 2, "fedstill: nowhere.toml: no such file"),
        ("resume nowhere", 2, "fedstill: nowhere: not a run"),
        ("compare nowhere", 2, "nowhere: no such folder"),
        ("show fedvg", 2, "fedstill: unknown name 'fedvg'"),
        ("ls things", 2, "fedstill: unknown kind of thing 'things'"),
        ("run fedavg --colour red", 2, "No such option"),
    ],
)
def test_mistakes_are_one_line_without_a_traceback(
    words: str,
    code: int,
    line: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    found, out, err = call(words, capsys)
    assert found == code
    assert line in err
    assert "Traceback" not in err
    assert out == ""
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = call("run fedavg --alpha 0 --debug", capsys)
    assert "Traceback" in err


def test_a_data_file_cut_in_half_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "data.npz"
    np.savez(file, x_train=np.zeros((60, 8, 8), np.uint8), y_train=np.arange(60) % 3)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    code, _, err = call(["run", "fedavg", "--data", str(file)], capsys)
    assert code == 2
    assert str(file) in err
    assert err.count("\n") == 1


def test_help_does_not_import_torch() -> None:
    script = "import sys, fedstill.cli as c\ntry: c.main(['-h'])\nexcept SystemExit: assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "resume" in done.stdout


def commands() -> list[str]:
    import typer

    from fedstill.cli_app import app

    return sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", commands())
def test_help_tells_of_every_argument_and_eats_no_default(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every word of every argument's and option's help is in what is printed, `[mnist-5k]` too."""
    from fedstill.cli_app import app

    monkeypatch.setenv("COLUMNS", "300")
    code, out, _ = call(f"{name} --help", capsys)
    assert code == 0
    shown = " ".join(out.split())
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    for parameter in command.get_params(click.Context(command)):
        about = str(getattr(parameter, "help", "") or "").replace("`", "")
        assert about, f"{parameter.name} says nothing of itself"
        assert about in shown, parameter.name


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    import fedstill

    assert call("--version", capsys)[:2] == (0, f"fedstill {fedstill.__version__}\n")


@pytest.mark.parametrize(
    ("words", "known"),
    [
        ("run fedk", {"fedkf", "fedkf-minus"}),
        ("run fedavg --data mnist-", {"mnist-5k"}),
        ("run fedavg --partition dir", {"dirichlet"}),
        ("run fedavg --model lenet", {"lenet5"}),
        ("run fedavg --attack logit", {"logit-flip"}),
        ("run fedavg --metric macro", {"macro-f1"}),
        ("show kru", {"krum"}),
        ("ls gath", {"gathers"}),
        ("reproduce fedkf/table5", {"fedkf/table5"}),
    ],
)
def test_the_shell_completes_what_is_registered(
    words: str, known: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    from click.shell_completion import ShellComplete
    from typer.main import get_command

    from fedstill.cli_app import app

    *before, incomplete = words.split()
    found = ShellComplete(get_command(app), {}, "fedstill", "_FEDSTILL_COMPLETE").get_completions(before, incomplete)
    assert {item.value for item in found} >= known
    assert all(item.value.startswith(incomplete) for item in found)


def test_what_cannot_be_tracked_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = call("run fedavg --track perclass", capsys)
    assert code == 2
    assert "'perclass': must be one of per-class" in err
    assert list(tmp_path.iterdir()) == []


class TestDemo:
    """`fedstill demo` replaces its own runs and nothing else."""

    def test_a_users_files_stay(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "fedavg").mkdir()
        (tmp_path / "fedavg" / "mine.txt").write_text("mine")
        code, _, err = call(f"demo --rounds 1 --out {tmp_path}", capsys)
        assert code == 2
        assert "was not made by the demo" in " ".join(err.split())
        assert (tmp_path / "fedavg" / "mine.txt").read_text() == "mine"
        assert not (tmp_path / "fedkf").exists()

    def test_its_own_runs_are_replaced_and_notes_beside_them_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from fedstill.cli_demo import MARK, make_room

        for name in ("fedavg", "fedkf", "mine"):
            (tmp_path / name).mkdir()
        (tmp_path / "notes.txt").write_text("mine")
        (tmp_path / MARK).write_text("fedavg\nfedkf\n")
        make_room(tmp_path)
        assert sorted(p.name for p in tmp_path.iterdir()) == [MARK, "mine", "notes.txt"]

    def test_a_page_of_ones_own_is_not_written_over(self, tmp_path: Path) -> None:
        import typer

        from fedstill.cli_demo import make_room

        (tmp_path / "report.html").write_text("<p>my own notes</p>")
        with pytest.raises(typer.BadParameter, match=r"report\.html was not made by the demo"):
            make_room(tmp_path)


def test_a_report_does_not_write_over_what_is_not_a_page_of_ours(
    a_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.html").write_text("mine")
    code, _, err = call(f"report {a_run} -o {tmp_path / 'notes.html'}", capsys)
    assert code == 2
    assert "not a page of fedstill" in err
    assert (tmp_path / "notes.html").read_text() == "mine"
    for _ in range(2):  # its own page it writes again
        assert call(f"report {a_run} -o {tmp_path / 'page.html'}", capsys)[0] == 0


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_options_come_from_fields_with_their_meaning_their_default_and_their_choices(command: str) -> None:
    """No option repeats what a field says: it is made of it, so a new field that asks for one has it at once."""
    group = typer.main.get_command(cli_app.app)
    one = group.commands[command]  # type: ignore[attr-defined]
    options = {p.name: p for p in one.get_params(click.Context(one))}
    for field in fields(Experiment):
        if not field.metadata.get("option") or (command == "sweep" and field.name == "seed"):
            continue
        help = options[field.name].help
        assert help.lower().startswith(f"{field.metadata['doc']}.".lower()), field.name
        if field.default not in (None, (), ""):
            named = "dirichlet" if field.name == "partition" else field.default
            assert help.endswith(f" [{named}]"), field.name
    assert isinstance(options["device"].type, click.Choice)
    assert {"alpha", "label", "site", "tokenizer"} <= options.keys()
    assert isinstance(options["clients"].type, click.types.IntParamType)
