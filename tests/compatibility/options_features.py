"""The lines of the table for pytest's fixtures, kinds of tests and reports beside the options."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from tests.compatibility.lines import Line
from tests.harness import Run, lines_with

_INNER = """
    import pytest

    INNER = '''
        import pytest

        @pytest.mark.distributed(2)
        def test_fails(world):
            assert world.rank == 0

        @pytest.mark.standalone
        def test_passes(world):
            assert world.world_size == 1

        def test_plain():
            pass
    '''
    @pytest.fixture(autouse=True)
    def no_other_plugins(monkeypatch):
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        monkeypatch.setenv("PYTEST_PLUGINS", "lightning_disttest.plugin")
"""
_PYTESTER = f"""{_INNER}
    def run(pytester):
        pytester.makepyfile(test_inner=INNER)
        return pytester.runpytest_inprocess()

    def test_outside(pytester):
        run(pytester).assert_outcomes(passed=2, failed=1)

    @pytest.mark.standalone
    def test_in_a_fresh_process(pytester):
        run(pytester).assert_outcomes(passed=2, failed=1)

    @pytest.mark.distributed(2)
    def test_on_ranks(pytester):
        result = run(pytester)
        result.assert_outcomes(passed=1, errors=2)
        result.stdout.fnmatch_lines(["*cannot be forked*(runpytest_subprocess)*"])
"""
_PYTESTER_SUBPROCESS = f"""{_INNER}
    @pytest.mark.distributed(2)
    def test_on_ranks(pytester):
        pytester.makepyfile(test_inner=INNER)
        pytester.runpytest_subprocess().assert_outcomes(passed=2, failed=1)
"""
_DOCTEST = """
    def plain():
        '''
        >>> 1 + 1
        2
        '''

    def passes_on_ranks():
        '''
        >>> import torch.distributed as dist
        >>> dist.get_world_size()
        2
        '''

    def fails_on_ranks():
        '''
        >>> import torch.distributed as dist
        >>> dist.get_rank()
        0
        '''
"""
_MARKS_DOCTESTS = """
    import pytest

    def pytest_collection_modifyitems(items):
        for item in items:
            if item.name.endswith("_on_ranks"):
                item.add_marker(pytest.mark.distributed(2))
"""
_UNITTEST = """
    import unittest
    import pytest
    import torch.distributed as dist

    class Case(unittest.TestCase):
        @classmethod
        def setUpClass(cls):
            cls.ranks = dist.get_world_size() if dist.is_initialized() else 1

        def setUp(self):
            self.rank = dist.get_rank() if dist.is_initialized() else 0

        @pytest.mark.distributed(2)
        def test_passes(self):
            self.assertEqual(self.ranks, 2)

        @pytest.mark.distributed(2, static=False)
        def test_fails(self):
            self.assertEqual(self.rank, 0)

        @pytest.mark.standalone
        def test_skips(self):
            self.skipTest("skipped in its process")

        def test_plain(self):
            self.assertEqual(self.ranks, 1)
"""
_SUBTESTS = """
    import pytest

    @pytest.mark.distributed(2)
    def test_subtests(subtests, world):
        for number in range(3):
            with subtests.test(number=number):
                assert not (number == 1 and world.rank == 1)
"""
_PROPERTIES = """
    import pytest

    @pytest.mark.distributed(2)
    def test_records(record_property, record_testsuite_property, world):
        record_property("alike", world.world_size)
        record_property("own", world.rank)
        record_testsuite_property("suite alike", world.world_size)
        record_testsuite_property("suite own", world.rank)
"""
_TEST_CACHE = """
    import pytest

    @pytest.mark.distributed(2)
    def test_cache(pytestconfig, world):
        pytestconfig.cache.set(f"example/rank{world.rank}", world.rank)
        world.barrier()
        assert [pytestconfig.cache.get(f"example/rank{rank}", None) for rank in (0, 1)] == [0, 1]

    @pytest.mark.standalone
    def test_cache_later(pytestconfig):
        assert pytestconfig.cache.get("example/rank1", None) == 1
"""
# With its folder: pytest 8.2 loses a value when two processes make that at the same time.
_CACHED = {"test_cache.py": _TEST_CACHE, ".pytest_cache/README.md": ""}
# The runs without the feature have a JUnit file, but not what this package puts there.
_NO_PROPERTIES = """
    from lightning_disttest.engine import controller

    controller.properties_of = lambda *_: []
    controller.merge_values = lambda _: []
"""
_RECORDED = {"test_records.py": _PROPERTIES, "without_properties.py": _NO_PROPERTIES}
_WITHOUT_PROPERTIES = ("-p", "without_properties")


def _suite(run: Run) -> ET.Element:
    files = list(run.folder.glob("junit-*.xml"))
    assert len(files) == 1
    (suite,) = ET.parse(files[0]).getroot()
    return suite


def _cases(run: Run) -> dict[str | None, ET.Element]:
    cases = list(_suite(run).iter("testcase"))
    assert len({case.get("name") for case in cases}) == len(cases)
    return {case.get("name"): case for case in cases}


def _properties(case: ET.Element) -> dict[str | None, str | None]:
    return {one.get("name"): one.get("value") for one in case.iter("property")}


def _has_one_case_per_test(run: Run) -> None:
    cases = _cases(run)
    assert len(cases) == 11
    assert _properties(cases["test_plain"]) == {}
    properties = _properties(cases["test_fails[static]"])
    assert (properties["disttest.kind"], properties["disttest.world_size"]) == ("static", "2")
    assert str(properties["disttest.rank_0"]).startswith("passed (pid ")
    assert str(properties["disttest.rank_1"]).startswith("failed (pid ")
    assert _properties(cases["test_skips[standalone]"])["disttest.kind"] == "standalone"


def _has_properties_of_ranks(run: Run) -> None:
    properties = _properties(_cases(run)["test_records"])
    assert {name: value for name, value in properties.items() if not str(name).startswith("disttest.")} == {
        "alike": "2",
        "own [rank 0]": "0",
        "own [rank 1]": "1",
    }


def _has_properties_of_the_suite(run: Run) -> None:
    found = _suite(run).findall("properties/property")
    assert {one.get("name"): one.get("value") for one in found} == {
        "suite alike": "2",
        "suite own [rank 0]": "0",
        "suite own [rank 1]": "1",
    }
    assert len(found) == 3


def _runs_pytest_inside(run: Run) -> None:
    names = ("test_outside", "test_in_a_fresh_process", "test_on_ranks")
    assert {name: run.outcome(name) for name in names} == dict.fromkeys(names, "passed"), run.output


def _starts_pytest_inside(run: Run) -> None:
    assert run.outcome("test_on_ranks") == "passed", run.output


def _runs_doctests(run: Run) -> None:
    assert run.outcome("documented.plain") == "passed"
    assert run.outcome("documented.passes_on_ranks") == "passed"
    assert run.outcome("documented.fails_on_ranks") == "failed"
    text = run.text("documented.fails_on_ranks")
    assert lines_with(text, "rank 1 of 2", "failed in call")
    assert "Expected:\n    0\nGot:\n    1" in text


def _runs_test_cases(run: Run) -> None:
    found = {name: run.outcome(f"Case::test_{name}") for name in ("passes", "fails", "skips", "plain")}
    assert found == {"passes": "passed", "fails": "failed", "skips": "skipped", "plain": "passed"}
    assert lines_with(run.text("Case::test_fails"), "rank 1 of 2", "failed in call")


def _reports_each_subtest_once(run: Run) -> None:
    assert run.outcome("test_subtests") == "failed"
    assert len(lines_with(run.output, "SUBPASSED")) == 2
    assert len(lines_with(run.output, "SUBFAILED(number=1)", "[", "%]")) == 1
    assert lines_with(run.text("test_subtests"), "rank 1 of 2", "failed in call")


def _shares_the_cache(run: Run) -> None:
    assert run.outcome("test_cache") == "passed"
    assert run.outcome("test_cache_later") == "passed"


def _shows_what_ranks_cached(run: Run) -> None:
    assert run.outcomes == {}
    assert "example/rank1 contains:\n  1" in run.output


FEATURES = (
    Line(
        name="`--junitxml`",
        on_ranks="one case per test; its properties `disttest.kind`, `disttest.world_size` and, per rank,"
        " `disttest.rank_0` say where it ran and how each rank ended",
        files=_RECORDED,
        off=_WITHOUT_PROPERTIES,
        check=_has_one_case_per_test,
    ),
    Line(
        name="`record_property`",
        on_ranks="there once if all ranks recorded the same value, else with the rank, as `name [rank 0]`",
        files=_RECORDED,
        off=_WITHOUT_PROPERTIES,
        check=_has_properties_of_ranks,
    ),
    Line(
        name="`record_testsuite_property`",
        on_ranks="there once if all ranks recorded the same value, else with the rank, as `name [rank 0]`",
        files=_RECORDED,
        off=_WITHOUT_PROPERTIES,
        check=_has_properties_of_the_suite,
    ),
    Line(
        name="`--doctest-modules`",
        on_ranks="doctests are plain tests; those that a `conftest.py` marks run on ranks",
        arguments=("--doctest-modules",),
        files={"documented.py": _DOCTEST, "conftest.py": _MARKS_DOCTESTS},
        check=_runs_doctests,
    ),
    Line(
        name="`unittest.TestCase`",
        on_ranks="methods take the marks; `setUpClass` and `setUp` run on each rank",
        off=("-p", "no:unittest"),
        files={"test_case.py": _UNITTEST},
        check=_runs_test_cases,
    ),
    Line(
        name="`subtests`",
        on_ranks="each subtest is reported once, and fails if it failed on any rank (pytest 9 or later)",
        arguments=("-v",),
        off=("-v", "-p", "no:subtests"),
        files={"test_subtests.py": _SUBTESTS},
        since=9,
        check=_reports_each_subtest_once,
    ),
    Line(
        name="`pytester`, in-process",
        on_ranks="the inner run may have tests on ranks; inside a test marked `distributed` those are clear errors",
        arguments=("-p", "pytester"),
        files={"test_pytester.py": _PYTESTER},
        check=_runs_pytest_inside,
    ),
    Line(
        name="`pytester`, in a subprocess",
        on_ranks="the inner run may have tests on ranks, inside any test",
        arguments=("-p", "pytester"),
        files={"test_pytester.py": _PYTESTER_SUBPROCESS},
        check=_starts_pytest_inside,
    ),
    Line(
        name="`config.cache`",
        on_ranks="all ranks read and write the one cache of the run",
        off=("-p", "no:cacheprovider"),
        files=_CACHED,
        plugins=("cacheprovider",),
        check=_shares_the_cache,
    ),
    Line(
        name="`--cache-show`",
        on_ranks="shows what ranks wrote there",
        before=(),
        arguments=("--cache-show",),
        common={},
        files=_CACHED,
        plugins=("cacheprovider",),
        check=_shows_what_ranks_cached,
    ),
)
