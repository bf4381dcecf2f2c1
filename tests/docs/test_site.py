"""The site without building it: its pages are there, its links lead somewhere, every method has its page."""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import markdown
import pytest
from mkdocs.config import load_config
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files, get_files
from mkdocs.structure.pages import Page

import fedstill
from fedstill.core.method import methods
from fedstill.report import catalogue

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site() -> tuple[MkDocsConfig, Files]:
    """The configuration and all files of the site, the generated ones too."""
    config = load_config(str(ROOT / "mkdocs.yml"))
    config = config.plugins.on_config(config)
    return config, config.plugins.on_files(get_files(config), config=config)


def pages(nav: Any) -> Iterator[str]:
    """Every page that a navigation names, at any depth."""
    if isinstance(nav, str):
        yield nav
    for entry in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from pages(entry)


def links(text: str) -> list[str]:
    """Where a page's links and pictures lead within the project; not those in its code."""
    prose = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.S)
    found = re.findall(r"\]\(([^)\s]+)\)", prose)
    return [link.split("#")[0] for link in found if not link.startswith(("http", "#", "mailto"))]


def test_the_navigation_names_every_page_and_no_other(site: tuple[MkDocsConfig, Files]) -> None:
    config, files = site
    assert sorted(pages(config.nav)) == sorted(file.src_uri for file in files.documentation_pages())


def test_every_link_between_pages_leads_to_a_file(site: tuple[MkDocsConfig, Files]) -> None:
    _, files = site
    there = {file.src_uri for file in files}
    for page in files.documentation_pages():
        for link in links(page.content_string):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(page.src_uri), link))
            assert target in there, f"{page.src_uri}: {link}"


@pytest.mark.parametrize("page", sorted(p.name for p in ROOT.glob("*.md")))
def test_every_link_of_the_project_s_own_pages_leads_to_a_file(page: str) -> None:
    for link in links((ROOT / page).read_text(encoding="utf-8")):
        assert (ROOT / link).exists(), link


def test_every_method_has_a_page_that_says_what_leaves_a_client_and_all_settings(
    site: tuple[MkDocsConfig, Files],
) -> None:
    config, files = site
    for name in methods:
        file = files.get_file_from_path(f"methods/{name}.md")
        assert file is not None, name
        page = Page(None, file, config)
        text = config.plugins.on_page_markdown(file.content_string, page=page, config=config, files=files)
        card = catalogue.card(name)
        for told in (*card["leaves_client"].values(), *(f"`{entry['name']}`" for entry in card["settings"])):
            assert told.replace("|", "\\|") in text, f"{name}: {told}"


def test_the_reference_has_every_command_every_setting_and_every_name(site: tuple[MkDocsConfig, Files]) -> None:
    _, files = site
    text = {p: files.src_uris[f"reference/{p}.md"].content_string for p in ("commands", "settings", "python")}
    assert "## fedstill run\n" in text["commands"]
    assert "`--alpha`" in text["commands"]
    assert "## fedstill results verify\n" in text["commands"]
    assert "| `WHAT` | A method's name" in text["commands"]
    assert "| `rounds` | `20` | rounds of communication (T) |" in text["settings"]
    for name in fedstill.names():
        assert f"fs.{name}" in text["python"], name


def test_a_page_that_loads_something_over_the_network_is_refused(site: tuple[MkDocsConfig, Files]) -> None:
    config, files = site
    page = Page(None, files.src_uris["index.md"], config)
    with pytest.raises(PluginError, match="over the network"):
        config.plugins.on_post_page('<img src="https://example.org/x.png">', page=page, config=config)
    inside = '<a href="https://example.org">x</a><img src="images/house.svg">'
    assert config.plugins.on_post_page(inside, page=page, config=config) == inside


def test_lists_that_follow_a_paragraph_are_set_apart_but_not_in_code(site: tuple[MkDocsConfig, Files]) -> None:
    config, files = site
    page = Page(None, files.src_uris["index.md"], config)
    text = "Choices\n1. one,\n   more\n2. two\n\n```\nx\n- y\n```\n- a\n"
    made = config.plugins.on_page_markdown(text, page=page, config=config, files=files)
    assert made == "Choices\n\n1. one,\n    more\n2. two\n\n```\nx\n- y\n```\n\n- a\n"


def test_a_list_inside_a_list_is_one_on_the_site_too(site: tuple[MkDocsConfig, Files]) -> None:
    """GitHub takes two spaces for the inner list, Python's Markdown needs four; what follows it stays in the outer."""
    config, files = site
    page = Page(None, files.src_uris["index.md"], config)
    text = "- outer\n  - one,\n    more\n  - two\n\n  after\n- next\n"
    made = config.plugins.on_page_markdown(text, page=page, config=config, files=files)
    shown = re.sub(r"\s+|</?p>", "", markdown.markdown(made))
    assert shown == "<ul><li>outer<ul><li>one,more</li><li>two</li></ul>after</li><li>next</li></ul>"


def test_tutorials_are_notebooks_in_the_repository_and_pages_on_the_site(site: tuple[MkDocsConfig, Files]) -> None:
    config, files = site
    page = Page(None, files.src_uris["tutorials/index.md"], config)
    source = page.file.content_string
    made = config.plugins.on_page_markdown(source, page=page, config=config, files=files)
    assert all((ROOT / "docs" / "tutorials" / link).exists() for link in links(source))
    assert [link.replace(".ipynb", ".md") for link in links(source)] == links(made) != []
