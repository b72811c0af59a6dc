"""What a run leaves behind: one JUnit file, one summary of warnings, pytest's cache, what plugins put on reports."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run, json_lines, lines_with, run_pytest

CONFTEST = """
    import json
    import pytest

    @pytest.fixture
    def extras(request):
        request.node.found = []
        return request.node.found

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        report = yield
        if call.when == "call" and hasattr(item, "found"):
            report.extras = item.found
            report.mood = item.found[0]["mood"]
        return report

    class Writer:
        def __init__(self, path):
            self.path = path

        def pytest_runtest_logreport(self, report):
            with open(self.path, "a") as file:
                found = [report.nodeid.partition("::")[2], getattr(report, "extras", []), getattr(report, "mood", None)]
                if report.when == "call":
                    file.write(json.dumps(found) + "\\n")

    def pytest_configure(config):
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(Writer(config.rootpath / "extras.jsonl"))
"""
RECORDS = """
    import warnings
    import pytest

    @pytest.fixture(scope="session", autouse=True)
    def suite(record_testsuite_property):
        record_testsuite_property("everywhere", "the same")

    def test_plain(record_property):
        record_property("mine", "plain")
        warnings.warn("of a plain test")

    @pytest.mark.distributed(2)
    def test_static(record_property, record_testsuite_property, world, extras):
        record_property("equal", "both")
        record_property("differing", f"value {world.rank}")
        if world.rank == 1:
            record_property("of one rank", "here")
        record_testsuite_property("by rank", world.rank)
        extras += [{"mood": "good", "of": "all"}, {"mood": "good", "of": world.rank}]

    @pytest.mark.distributed(2)
    def test_warns(world):
        warnings.warn("of all ranks", FutureWarning)
        if world.rank == 1:
            warnings.warn("of one rank")

    @pytest.mark.distributed(2, static=False)
    def test_dynamic(record_property):
        record_property("equal", 5)
        warnings.warn("in a dynamic world")

    @pytest.mark.standalone
    def test_standalone(record_property):
        record_property("alone", "yes")
        warnings.warn("in a fresh process")

    @pytest.mark.distributed(2)
    @pytest.mark.parametrize("number", [1, 2])
    def test_fails(world, number):
        assert world.rank != 1, "only rank 1"

    @pytest.mark.distributed(2)
    def test_skips(): pytest.skip("on all ranks")
"""
NAMES = {
    "test_plain",
    "test_static",
    "test_warns",
    "test_dynamic",
    "test_standalone",
    "test_fails[1]",
    "test_fails[2]",
    "test_skips",
}
OURS = ("disttest.kind", "disttest.world_size")


FILES = {"conftest.py": CONFTEST, "test_records.py": RECORDS}
SUMMARY = "2 failed, 5 passed, 1 skipped, 5 warnings in"


@pytest.fixture(scope="module")
def alone(run_once: RunOnce) -> Run:
    """Return a run of all kinds of tests that record and warn."""
    return run_once(FILES, "-o", "junit_family=xunit1")  # the default family warns of record_property


@pytest.fixture(scope="module", params=["alone", "xdist"])
def run(request: pytest.FixtureRequest, run_once: RunOnce, alone: Run) -> Run:
    """Return such a run without pytest-xdist, and one with it."""
    done = alone if request.param == "alone" else run_once(FILES, "-o", "junit_family=xunit1", "-n2")
    assert SUMMARY in done.output, done.output
    return done


def _junit(run: Run) -> ET.Element:
    (path,) = run.folder.glob("**/*.xml")
    (suite,) = ET.parse(path).getroot().iter("testsuite")
    return suite


def _properties(element: ET.Element) -> list[tuple[str, str]]:
    """Return the properties of a test or of the suite itself, in order."""
    return [(found.get("name", ""), found.get("value", "")) for found in element.findall("properties/property")]


def _of(run: Run, name: str) -> list[tuple[str, str]]:
    (case,) = (case for case in _junit(run).iter("testcase") if case.get("name") == name)
    return _properties(case)


def test_one_entry_per_test(run: Run) -> None:
    """There is one JUnit file, with one entry for each test and one count of it, however many ranks ran it."""
    suite = _junit(run)
    assert sorted(case.get("name", "") for case in suite.iter("testcase")) == sorted(NAMES)
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "8", "failures": "2", "errors": "0", "skipped": "1"}


@pytest.mark.parametrize(
    ("name", "kind", "ends"),
    [
        ("test_static", "static", ["passed", "passed"]),
        ("test_dynamic", "dynamic", ["passed", "passed"]),
        ("test_standalone", "standalone", ["passed"]),
        ("test_fails[1]", "static", ["passed", "failed"]),
        ("test_skips", "static", ["skipped", "skipped"]),
    ],
)
def test_properties_say_where_a_test_ran(run: Run, name: str, kind: str, ends: list[str]) -> None:
    """Each test on ranks has the kind and size of its world, and how each rank ended, with pid and seconds."""
    found = [(key, value) for key, value in _of(run, name) if key.startswith("disttest.")]
    size = len(ends)
    assert [key for key, _ in found] == [*OURS, *(f"disttest.rank_{rank}" for rank in range(size))]
    assert [value for _, value in found[:2]] == [kind, str(size)]
    shown = [re.fullmatch(r"(\w+) \(pid (\d+), \d+\.\d{3} s\)", value) for _, value in found[2:]]
    assert [match and match[1] for match in shown] == ends
    assert len({match and match[2] for match in shown}) == size, "each rank is a process of its own"


@pytest.mark.parametrize(
    ("name", "recorded"),
    [
        ("test_plain", [("mine", "plain")]),
        (
            "test_static",
            [
                ("equal", "both"),
                ("differing [rank 0]", "value 0"),
                ("differing [rank 1]", "value 1"),
                ("of one rank", "here"),
            ],
        ),
        ("test_dynamic", [("equal", "5")]),
        ("test_standalone", [("alone", "yes")]),
    ],
)
def test_recorded_properties(run: Run, name: str, recorded: list[tuple[str, str]]) -> None:
    """What all ranks recorded alike is there once, what they recorded differently names the rank."""
    assert [(key, value) for key, value in _of(run, name) if not key.startswith("disttest.")] == recorded


def test_recorded_properties_of_the_suite(alone: Run) -> None:
    """A property of the run is there once, though this process and each rank of each world record it."""
    assert _properties(_junit(alone)) == [
        ("everywhere", "the same"),
        ("by rank [rank 0]", "0"),
        ("by rank [rank 1]", "1"),
    ]


def test_recorded_properties_of_ranks_alone(run_once: RunOnce) -> None:
    """A property that nobody but ranks records is there once, though each rank of each world records it."""
    source = """
        import pytest

        @pytest.fixture(scope="session", autouse=True)
        def suite(record_testsuite_property):
            record_testsuite_property("everywhere", "the same")

        @pytest.mark.standalone
        def test_one(): pass

        @pytest.mark.standalone
        def test_two(record_testsuite_property):
            record_testsuite_property("again", 1)
            record_testsuite_property("again", 2)
    """
    run = run_once({"test_suite.py": source})
    assert _properties(_junit(run)) == [("everywhere", "the same"), ("again", "1"), ("again", "2")]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("FutureWarning: of all ranks", " (ranks 0-1)"),
        ("UserWarning: of one rank", " (rank 1)"),
        ("UserWarning: in a dynamic world", " (ranks 0-1)"),
        ("UserWarning: in a fresh process", ""),
        ("UserWarning: of a plain test", ""),
    ],
)
def test_summary_of_warnings(run: Run, text: str, where: str) -> None:
    """A warning is in the summary once, at its own line of the test file, with the ranks that gave it."""
    (line,) = lines_with(run.output, text)
    assert line.endswith(f"{text}{where}"), line
    assert re.search(r"test_records\.py:\d+: ", line)


def test_what_plugins_put_on_reports(run: Run) -> None:
    """Lists that a plugin puts on the reports of ranks arrive as one, other values as the first rank has them."""
    found = {name: (extras, mood) for name, extras, mood in json_lines(run.folder / "extras.jsonl")}
    assert found.keys() == NAMES
    extras = [{"mood": "good", "of": each} for each in ("all", 0, 1)]
    assert found.pop("test_static") == (extras, "good")
    assert set(map(repr, found.values())) == {"([], None)"}


CACHE = """
    import json
    import pytest

    @pytest.fixture
    def note(pytestconfig, world):
        def note(kind):
            key = f"mine/{kind}-{world.rank}"
            with open(pytestconfig.rootpath / "notes.jsonl", "a") as file:
                file.write(json.dumps([kind, world.rank, pytestconfig.cache.get(key, None)]) + "\\n")
            pytestconfig.cache.set(key, {"rank": world.rank, "kind": kind})

        return note

    @pytest.mark.distributed(2)
    def test_static(note): note("static")

    @pytest.mark.standalone
    def test_standalone(note): note("standalone")

    @pytest.mark.distributed(2)
    def test_fails(world, note):
        note("fails")
        assert world.rank == 0
"""


def test_cache_of_ranks_lasts(run_once: RunOnce) -> None:
    """What ranks write into pytest's cache is there in the next run, and so is which test failed on a rank."""
    first = run_once({"test_cache.py": CACHE}, plugins=["cacheprovider"])
    notes = first.folder / "notes.jsonl"
    keys = [("static", 0), ("static", 1), ("standalone", 0), ("fails", 0), ("fails", 1)]
    assert sorted(json_lines(notes)) == sorted([kind, rank, None] for kind, rank in keys)
    notes.unlink()
    second = run_pytest(first.folder, "--failed-first", plugins=["cacheprovider"])
    assert sorted(json_lines(notes)) == sorted([kind, rank, {"rank": rank, "kind": kind}] for kind, rank in keys)
    assert "run-last-failure: rerun previous 1 failure first" in second.output
