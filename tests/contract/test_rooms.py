"""The rooms of the house import one way only: a room uses those below it, and never one above."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedstill

SOURCE = Path(fedstill.__file__).parent
ROOMS = [
    "core",
    "data",
    "models",
    "parts",
    "methods",
    "transports",
    "experiment",
    "report",
    "flower",
    "estimator",
    "cli",
]
"""From the ground up."""


def room_of(module: str) -> str | None:
    """The room of `fedstill.room.file`; every cli file is the room `cli`; the package's own face is none.

    >>> room_of("fedstill.core.loop"), room_of("fedstill.cli_demo"), room_of("fedstill"), room_of("torch.nn")
    ('core', 'cli', None, None)
    """
    words = module.split(".")
    if words[0] != "fedstill" or len(words) == 1 or words[1] == "__main__":
        return None
    return "cli" if words[1].startswith("cli") else words[1]


def imported(file: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, at its head or inside a function, and the line."""
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Import():
                yield from ((alias.name, node.lineno) for alias in node.names)
            case ast.ImportFrom(level=0, module=str(module)):
                yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)
            case ast.ImportFrom():
                raise AssertionError(f"{file}:{node.lineno}: imports are written in full, from fedstill down")
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(module))]):
                yield module, node.lineno


def edges() -> dict[tuple[str, str], list[str]]:
    """Which room imports which, with the places where."""
    found: dict[tuple[str, str], list[str]] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        here = room_of(".".join(["fedstill", *file.relative_to(SOURCE).with_suffix("").parts]))
        if here is None or here == "__init__":
            continue
        for module, line in imported(file):
            there = room_of(module)
            if there is not None and there != here:
                found.setdefault((here, there), []).append(f"{file.relative_to(SOURCE)}:{line}")
    return found


def cycles(graph: set[tuple[str, str]]) -> list[list[str]]:
    """Every simple cycle of rooms, each begun at its lowest room.

    >>> cycles({("data", "core"), ("core", "data"), ("parts", "core")})
    [['core', 'data', 'core']]
    """
    found: list[list[str]] = []

    def walk(path: list[str]) -> None:
        for here, there in sorted(graph):
            if here != path[-1]:
                continue
            if there == path[0]:
                found.append([*path, there])
            elif there not in path and ROOMS.index(there) > ROOMS.index(path[0]):
                walk([*path, there])

    for room in ROOMS:
        walk([room])
    return found


def test_every_room_has_its_place() -> None:
    rooms = {room for edge in edges() for room in edge}
    assert rooms <= set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_below_it(room: str) -> None:
    upwards = {
        f"{here} → {there}": places
        for (here, there), places in edges().items()
        if here == room and ROOMS.index(there) > ROOMS.index(here)
    }
    assert upwards == {}


def test_no_cycle_of_rooms_is_left() -> None:
    assert cycles(set(edges())) == []


def test_no_files_import_each_other() -> None:
    """Nor do files of one room import each other in a circle, not even inside functions."""
    assert knots(file_graph()) == []


def file_graph() -> dict[str, set[str]]:
    """The modules of the package that each of its modules imports."""
    names = {}
    for file in sorted(SOURCE.rglob("*.py")):
        words = ["fedstill", *file.relative_to(SOURCE).with_suffix("").parts]
        names[".".join(words[:-1] if words[-1] == "__init__" else words)] = file
    graph: dict[str, set[str]] = {}
    for name, file in names.items():
        if name == "fedstill":
            continue  # the package's face loads everything when it is first used
        wanted = {module if module in names else module.rpartition(".")[0] for module, _ in imported(file)}
        graph[name] = {module for module in wanted if module in names and module not in ("fedstill", name)}
    return graph


def knots(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules of which each can be reached from each other.

    >>> knots({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})
    [['a', 'b', 'c']]
    """
    reach = {name: set(there) for name, there in graph.items()}
    grown = True
    while grown:
        grown = False
        for there in reach.values():
            more = set().union(*(reach.get(other, set()) for other in there)) - there
            there |= more
            grown = grown or bool(more)
    tied = {name: tuple(sorted(o for o in there if name in reach.get(o, ()))) for name, there in reach.items()}
    return sorted(list(group) for group in set(tied.values()) if group)


def test_only_the_flower_room_imports_flower() -> None:
    """And of it one file alone imports what Flower does not promise: its public packages are these four."""
    public = {"app", "clientapp", "serverapp", "simulation"}
    outside, private = [], set()
    for file in SOURCE.rglob("*.py"):
        for module, _ in imported(file):
            words = module.split(".")
            if words[0] != "flwr":
                continue
            place = file.relative_to(SOURCE).parts
            if place[0] != "flower":
                outside.append(f"{file}: {module}")
            elif len(words) > 1 and not (words[1] in public and len(words) == 3):
                private.add("/".join(place))
    assert outside == []
    assert private == {"flower/api/private.py"}


def test_only_one_file_touches_what_flower_s_objects_hide() -> None:
    """An attribute that begins with an underscore is asked of `self` only, and of Python's `os`."""
    hidden = {
        f"{file.name}:{node.lineno} {ast.unparse(node)}"
        for file in (SOURCE / "flower").rglob("*.py")
        if file != SOURCE / "flower" / "api" / "private.py"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "os"))
    }
    assert hidden == set()


def test_a_report_reads_no_data() -> None:
    """What it draws was written by the run: of the data's room it needs the kinds; `ls` and `doctor` list data sets."""
    listing = SOURCE / "report" / "catalogue.py"
    wanted = {m for f in (SOURCE / "report").rglob("*.py") if f != listing for m, _ in imported(f)}
    assert {m for m in wanted if m.startswith("fedstill.data") and not m.startswith("fedstill.data.kinds.")} == set()


def test_general_code_imports_no_paper_s_method() -> None:
    """But FedAvg, the default."""
    files = {file.stem for file in (SOURCE / "methods").glob("*.py")} | {"dafkd"}
    found = {
        (str(file.relative_to(SOURCE)), module.split(".")[2])
        for file in SOURCE.rglob("*.py")
        if file.relative_to(SOURCE).parts[0] != "methods"
        for module, _ in imported(file)
        if module.startswith("fedstill.methods.") and module.split(".")[2] in files - {"fedavg"}
    }
    assert found == set()


def test_whoever_asks_for_an_attribute_by_name_says_why() -> None:
    """A type, or what a field carries, says more than `hasattr`; where a name is all there is, a comment says so."""
    asked = re.compile(r"\b(hasattr|getattr)\(")
    unexplained = []
    for file in SOURCE.rglob("*.py"):
        lines = ["", *file.read_text().splitlines()]
        for number, line in enumerate(lines):
            if asked.search(line) and "# " not in lines[number - 1] + line:
                unexplained.append(f"{file.relative_to(SOURCE)}:{number}")
    assert unexplained == []
