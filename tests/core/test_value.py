"""Values check themselves and are built from plain settings, with errors of one line."""

from dataclasses import dataclass
from typing import Literal

import pytest

from fedstill.core.errors import UsageError, unknown
from fedstill.core.registry import Registry
from fedstill.core.value import Value, build, build_named, changes, coerce, plain, setting


@dataclass(frozen=True)
class Tool(Value):
    """A kind of value."""


tools: Registry[Tool] = Registry("tool", Tool)


@tools.register("saw")
@dataclass(frozen=True)
class Saw(Tool):
    teeth: int = setting(20, ge=1)
    width: float = setting(1.0, gt=0, le=5)
    blade: Literal["coarse", "fine"] = setting("coarse")
    sharp: bool = setting(True)
    owner: str | None = setting(None)
    sizes: tuple[float, ...] = setting(())


@dataclass(frozen=True)
class Box(Value):
    tool: Tool = setting(Saw())
    spare: Tool | None = setting(None)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"teeth": 0}, "teeth = 0: must be ≥ 1"),
        ({"teeth": "many"}, "teeth = 'many': must be a whole number"),
        ({"teeth": 2.5}, "teeth = 2.5: must be a whole number"),
        ({"teeth": True}, "teeth = True: must be a whole number"),
        ({"width": -1}, "width = -1.0: must be > 0"),
        ({"width": "nan"}, "width = nan: must be a number"),
        ({"width": 6}, "width = 6.0: must be ≤ 5"),
        ({"blade": "blunt"}, "blade = 'blunt': must be one of coarse, fine"),
        ({"sharp": "perhaps"}, "sharp = 'perhaps': must be true or false"),
        ({"length": 1}, "unknown setting of Saw 'length'; known: blade, owner, sharp, sizes, teeth, width"),
    ],
)
def test_bad_settings_get_one_line(settings: dict[str, object], line: str) -> None:
    with pytest.raises(UsageError) as error:
        build(Saw, settings)
    assert str(error.value) == line


def test_text_becomes_what_the_field_asks_for() -> None:
    made = build(Saw, {"teeth": "30", "width": "2", "sharp": "false", "owner": "none", "sizes": "1,2.5"})
    assert made == Saw(30, 2.0, "coarse", False, None, (1.0, 2.5))


def test_nested_values_come_from_names_or_tables_and_go_back() -> None:
    box = build(Box, {"tool": {"name": "saw", "teeth": 5}, "spare": "saw"})
    assert box == Box(Saw(teeth=5), Saw())
    assert plain(box.tool) == {"name": "saw", "teeth": 5, "width": 1.0, "blade": "coarse", "sharp": True, "sizes": []}
    assert build_named(Tool, plain(box.tool)) == box.tool
    assert changes(box.tool) == {"teeth": 5}
    with pytest.raises(UsageError, match="unknown tool 'axe'; known: saw"):
        build(Box, {"tool": "axe"})


def test_an_unknown_name_suggests_the_nearest() -> None:
    assert str(unknown("method", "fedvg", ["fedavg", "fedkf"])) == (
        "unknown method 'fedvg'; did you mean fedavg? known: fedavg, fedkf"
    )


def test_a_large_whole_number_is_not_read_by_way_of_a_float() -> None:
    assert coerce("seed", 2**53 + 1, int) == 2**53 + 1
    assert coerce("seed", 3.0, int) == 3
