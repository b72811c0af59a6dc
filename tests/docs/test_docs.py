"""The pages of the documentation: examples run, tables are those of the code, links lead somewhere."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from lightning_disttest import Faults, World, plugin
from lightning_disttest.engine.isolation import QUIET_VARIABLES
from lightning_disttest.engine.living import BENIGN_CHILDREN, BENIGN_THREADS
from lightning_disttest.selection.marks import MARKERS
from lightning_disttest.settings import OPTIONS, Option
from tests.docs.pages import PAGES, README, ROOT, blocks_of, first_cells, follow, links_of

if TYPE_CHECKING:
    from pathlib import Path

DOCS = ROOT / "docs"
WITH_COMMANDS = [page for page in PAGES if page != README and any(b.language == "console" for b in blocks_of(page))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.stem)
def test_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    """The files and commands of a page, followed from top to bottom, print what it shows."""
    assert follow(page, tmp_path) > 0


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_block_is_run_or_named_otherwise(page: Path) -> None:
    """A python block has a file name and a page that runs it, a console block a command; others say what they are."""
    blocks = blocks_of(page)
    for block in blocks:
        assert block.language in ("python", "console", "bash", "text"), block.text
        assert block.language != "python" or block.file_name is not None, block.text
        assert block.language != "console" or block.text.startswith("$ "), block.text
    if any(block.language == "python" for block in blocks):
        assert page == README or page in WITH_COMMANDS


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    """The target of every link is a file of this repository and, after ``#``, one of its headings."""
    for link in links_of(page):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        assert not anchor or anchor in _anchors(target), link


def test_index_lists_every_page() -> None:
    """The index has a link to each page, and each page is in it once."""
    listed = [(DOCS / link).resolve() for link in links_of(DOCS / "index.md")]
    assert sorted(listed) == sorted(page for page in DOCS.glob("**/*.md") if page.name != "index.md")


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_page_has_no_path_of_a_machine(page: Path) -> None:
    """No page has an absolute path of the machine on which it was written."""
    assert re.findall(r"(?<![\w.:/])/(?:home|tmp|usr|root|opt|work|Users|var|mnt)\b", page.read_text()) == []


def test_options_page_has_every_option() -> None:
    """The table of options is the one of the code, row by row."""
    rows = [line for line in (DOCS / "reference/options.md").read_text().splitlines() if line.startswith("| `")]
    assert rows[: len(OPTIONS)] == [_row(option) for option in OPTIONS]
    assert not any("disttest" in row.lower() for row in rows[len(OPTIONS) :])


def test_marks_page_has_every_mark() -> None:
    """The headings of the marks' page are the signatures that ``pytest --markers`` shows."""
    headings = re.findall(r"^## `(.*)`$", (DOCS / "reference/marks.md").read_text(), re.MULTILINE)
    assert headings == [*(marker.partition("):")[0] + ")" for marker in MARKERS), "RunIf(...)"]


def test_marks_page_has_every_argument() -> None:
    """The tables of the marks' page have the arguments of each mark, in the order of its signature."""
    text = (DOCS / "reference/marks.md").read_text()
    for marker in MARKERS:
        signature = marker.partition("):")[0] + ")"
        arguments = re.findall(r"(\w+)(?:=[^,)]*)?[,)]", signature.partition("(")[2])
        assert first_cells(text, f"## `{signature}`") == arguments


def test_isolation_page_has_everything_that_may_stay() -> None:
    """The tables of threads and processes are those of the code, with their reasons; so is the list of variables."""
    page = (DOCS / "reference/isolation.md").read_text()
    for heading, entries in (("Threads", BENIGN_THREADS), ("Child processes", BENIGN_CHILDREN)):
        section = page.partition(f"## {heading} that may stay\n")[2].partition("\n## ")[0]
        rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
        assert rows == [f"| {entry.name} | {entry.reason} |" for entry in entries]
    variables = page.partition("set themselves:\n")[2].partition(".\n")[0]
    assert re.findall(r"`(\w+)`", variables) == sorted(QUIET_VARIABLES)


def test_fixtures_page_has_every_fixture() -> None:
    """The headings of the fixtures' page are the fixtures of the plugin."""
    headings = re.findall(r"^## `(\w+)`$", (DOCS / "reference/fixtures.md").read_text(), re.MULTILINE)
    fixtures = [name for name, value in vars(plugin).items() if type(value) is type(pytest.fixture(lambda: None))]
    assert sorted(headings) == sorted(fixtures)


def test_fixtures_page_has_all_of_world() -> None:
    """The table of ``world`` has every public name of the class, in its order."""
    public = [name for name in vars(World) if not name.startswith("_")]
    assert first_cells((DOCS / "reference/fixtures.md").read_text(), "## `world`") == public


def test_fixtures_page_has_all_of_faults() -> None:
    """The table of ``faults`` has every method that plans a fault, in the order of the class."""
    planning = [name for name in vars(Faults) if not name.startswith("_") and name != "tear_down"]
    assert first_cells((DOCS / "reference/fixtures.md").read_text(), "## `faults`") == planning


def test_dependencies_page_has_every_dependency() -> None:
    """Each dependency of pyproject.toml has a row with its reason, and nothing else has one."""
    project = (ROOT / "pyproject.toml").read_text()
    runtime = _names(project, r"^dependencies = \[(.*?)^\]")
    development = _names(project, r"^test = \[(.*?)\]") | _names(project, r"^lint = \[(.*?)\]")
    page = (DOCS / "explanation/dependencies.md").read_text()
    assert set(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)) == runtime | development


def test_constraints_pin_every_dependency() -> None:
    """Each dependency of pyproject.toml has an exact version in ``constraints/dev.txt``."""
    project = (ROOT / "pyproject.toml").read_text()
    wanted = set().union(*(_names(project, rf"^{key} = \[(.*?)\]") for key in ("dependencies", "test", "lint")))
    pinned = re.findall(r"^([\w-]+)==\d", (ROOT / "constraints/dev.txt").read_text(), re.MULTILINE)
    assert wanted <= set(pinned)


def test_lowest_constraints_are_those_of_the_project() -> None:
    """Each dependency of pyproject.toml is pinned in ``constraints/lowest.txt`` at the lowest version it claims."""
    project = (ROOT / "pyproject.toml").read_text()
    section = re.search(r"^dependencies = \[(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    assert section is not None
    claimed = re.findall(r'"([\w-]+)>=([\d.]+)"', section[1])
    pinned = dict(re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / "constraints/lowest.txt").read_text(), re.MULTILINE))
    assert {name: f"{version}.0" for name, version in claimed} == {name: pinned.get(name) for name, _ in claimed}
    assert len(claimed) == len(_names(project, r"^dependencies = \[(.*?)^\]"))


def _row(option: Option) -> str:
    flag = option.flag
    default = "off"
    if option.kind != "switch":
        flag += "=" + str(option.metavar).replace("|", "\\|")
        default = f"{option.default:g}" if isinstance(option.default, float) else str(option.default) or "none"
    return f"| `{flag}` | `{option.environment}` | `{option.ini}` | {default} | {option.help} |"


def _anchors(page: Path) -> list[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings]


def _names(project: str, pattern: str) -> set[str]:
    match = re.search(pattern, project, re.MULTILINE | re.DOTALL)
    assert match is not None
    return set(re.findall(r'"([\w-]+)', match[1]))
