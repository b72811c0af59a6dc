"""Everything that works in a plain test works in a rank, and nothing has to be pickled for it."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run

SOURCE = """
    import logging, os, unittest, warnings
    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.distributed(2)


    @pytest.fixture(scope="session")
    def session_pid():
        return os.getpid()

    @pytest.fixture(scope="module", params=["x", "y"])
    def parametrised(request, session_pid):
        yield request.param

    @pytest.fixture(autouse=True)
    def number():
        yield 7

    def test_fixtures(parametrised, session_pid, number):
        assert session_pid == os.getpid()
        assert parametrised in "xy"

    @pytest.mark.parametrize("value", [1, 2])
    def test_parametrised(value, world):
        total = torch.tensor([value * (world.rank + 1)])
        dist.all_reduce(total)
        assert total.item() == 3 * value

    class TestClass:
        @pytest.fixture
        def own(self):
            return self

        def test_method(self, own, world):
            assert own is not None
            assert world.world_size == 2

    class Case(unittest.TestCase):
        def setUp(self):
            self.ready = True

        def test_unittest(self):
            self.assertTrue(self.ready)
            self.assertEqual(dist.get_world_size(), 2)

    def test_local_class_and_lambda():
        class Local:
            call = lambda self: dist.get_world_size()

        assert Local().call() == 2

    def test_monkeypatch(monkeypatch):
        monkeypatch.setattr(os, "getcwd", lambda: "patched")
        assert os.getcwd() == "patched"

    def test_data_loader_workers():
        from torch.utils.data import DataLoader

        assert len(list(DataLoader(list(range(8)), num_workers=2))) == 8

    def test_capsys(capsys):
        print("seen")
        assert capsys.readouterr().out == "seen\\n"

    def test_capfd(capfd):
        os.write(1, b"seen")
        assert capfd.readouterr().out == "seen"

    def test_caplog(caplog):
        logging.getLogger("a").warning("seen")
        assert "seen" in caplog.text

    def test_assertion_is_rewritten():
        assert [1, 2, 3] == [1, 2, 4]

    @pytest.mark.filterwarnings("error:careful")
    def test_filterwarnings():
        warnings.warn("careful")

    def test_warning_is_recorded():
        warnings.warn("once, please")

    @pytest.mark.xfail(reason="one rank is enough")
    def test_xfail(world):
        assert world.rank == 0
        dist.barrier()

    @pytest.mark.xfail(raises=ValueError)
    def test_xfail_does_not_cover_another_error(world):
        raise ValueError("named") if world.rank == 0 else KeyError("not named")

    @pytest.mark.xfail(strict=True)
    def test_strict_xpass():
        pass

    def test_skip():
        pytest.skip("not today")

    @pytest.mark.skip(reason="marked")
    def test_skip_mark(no_such_fixture_is_needed=None):
        raise AssertionError("a skipped test runs nowhere")

    def test_tmp_path_is_shared(tmp_path, rank_tmp_path, world):
        (tmp_path / str(world.rank)).write_text("here")
        (rank_tmp_path / "own").write_text("here")
        dist.barrier()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]
        assert [path.name for path in rank_tmp_path.iterdir()] == ["own"]

    def test_world(world):
        assert (world.rank, world.world_size, world.backend) == (dist.get_rank(), 2, "gloo")
        assert world.local_rank == world.rank
        assert world.device == torch.device("cpu")
        assert world.is_rank_zero == (world.rank == 0)
        world.barrier()
        world.record("same", torch.ones(2))

    def test_records_differ(world):
        world.record("loss", float(world.rank))

    def test_barrier_has_a_limit(world):
        if world.is_rank_zero:
            with pytest.raises(TimeoutError, match="rank 0 waited 0.2 s"):
                world.barrier(timeout=0.2)

    def test_environment(world):
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR")
        rank = str(world.rank)
        assert [os.environ[name] for name in names] == [rank, rank, "2", "2", "0", "127.0.0.1"]

    def test_threads_are_shared_out():
        cores = len(os.sched_getaffinity(0))
        assert torch.get_num_threads() == max(1, cores // 2)
        assert torch.ones(300_000).sum() == 300_000  # a parallel region in a forked rank
"""

SUBTESTS = """
    import pytest

    @pytest.mark.distributed(2)
    def test_subtests(subtests, world):
        for number in range(3):
            with subtests.test(number=number):
                assert not (number == 1 and world.rank == 1)
"""

PASSING = (
    "test_fixtures[x]",
    "test_fixtures[y]",
    "test_parametrised[1]",
    "test_parametrised[2]",
    "TestClass::test_method",
    "Case::test_unittest",
    "test_local_class_and_lambda",
    "test_monkeypatch",
    "test_data_loader_workers",
    "test_capsys",
    "test_capfd",
    "test_caplog",
    "test_warning_is_recorded",
    "test_tmp_path_is_shared",
    "test_world",
    "test_environment",
    "test_threads_are_shared_out",
)


@pytest.fixture(scope="module")
def run(run_once: RunOnce) -> Run:
    """Return one run of all features."""
    return run_once({"test_features.py": SOURCE})


@pytest.mark.parametrize("name", PASSING)
def test_feature_works_on_every_rank(run: Run, name: str) -> None:
    """A feature of pytest or of the world works on both ranks."""
    assert run.outcome(name) == "passed", run.output


def test_assertions_are_explained(run: Run) -> None:
    """An assertion that fails on a rank is explained as in a plain test."""
    assert run.outcome("test_assertion_is_rewritten") == "failed"
    assert "At index 2 diff: 3 != 4" in run.text("test_assertion_is_rewritten")


def test_warning_filters_hold(run: Run) -> None:
    """The mark filterwarnings turns a warning on a rank into an error."""
    assert run.outcome("test_filterwarnings") == "failed"
    assert "UserWarning: careful" in run.text("test_filterwarnings")


def test_warning_is_in_the_summary_once(run: Run) -> None:
    """A warning that both ranks raise is in the summary once."""
    assert run.output.count("UserWarning: once, please") == 1


def test_xfail_needs_one_rank(run: Run) -> None:
    """An expected failure holds when one rank fails as named and the other was waiting for it."""
    assert run.outcome("test_xfail") == "xfailed"


def test_xfail_covers_no_other_error(run: Run) -> None:
    """An expected failure does not cover another rank's other error."""
    assert run.outcome("test_xfail_does_not_cover_another_error") == "failed"
    assert "KeyError: 'not named'" in run.text("test_xfail_does_not_cover_another_error")


def test_strict_xpass_fails(run: Run) -> None:
    """A strict expected failure that passes on all ranks fails."""
    assert run.outcome("test_strict_xpass") == "failed"
    assert "XPASS(strict)" in run.text("test_strict_xpass")


@pytest.mark.parametrize(("name", "reason"), [("test_skip", "not today"), ("test_skip_mark", "marked")])
def test_skips_keep_their_reason(run: Run, name: str, reason: str) -> None:
    """A test that all ranks skip, or that a mark skips, is skipped with the reason."""
    assert run.outcome(name) == "skipped"
    assert reason in run.text(name)


def test_different_records_fail(run: Run) -> None:
    """Values that ranks recorded under one name must be equal; the report is a table."""
    assert run.outcome("test_records_differ") == "failed"
    text = run.text("test_records_differ")
    assert "  loss\n    rank 0  0.0\n    rank 1  1.0\n" in text


def test_barrier_limit_is_a_clear_error(run: Run) -> None:
    """A barrier that not all ranks reach ends at its limit with an error that can be caught."""
    assert run.outcome("test_barrier_has_a_limit") == "passed", run.text("test_barrier_has_a_limit")


def test_header_counts_the_tests_on_ranks(run: Run) -> None:
    """The line after collection says how many tests run where, and the start method."""
    assert "disttest: 26 static in 1 world (start method: fork)" in run.output


@pytest.mark.skipif(int(pytest.__version__.split(".")[0]) < 9, reason="pytest has subtests since 9.0")
def test_failing_subtest_fails_its_test(run_once: RunOnce) -> None:
    """A subtest that fails on one rank is reported once, as failed, with that rank named, and fails its test."""
    run = run_once({"test_subtests.py": SUBTESTS}, "-v")
    assert run.returncode == 1
    assert run.output.count("SUBFAILED(number=1)") == 2  # the line and the summary
    assert run.output.count("SUBPASSED(number=0)") == 1
    assert "rank 1 of 2" in run.output
    assert "contains 1 failed subtest" in run.output
    assert "1 failed, 2 subtests passed" in run.output or "2 failed, 2 subtests passed" in run.output


def test_importlib_mode(run_once: RunOnce) -> None:
    """Tests that no import statement can reach run on ranks all the same."""
    source = """
        import pytest

        class Local:
            pass

        @pytest.mark.distributed(2)
        def test_it(world):
            assert Local.__module__ == __name__
    """
    run = run_once({"a/test_same.py": source, "b/test_same.py": source}, "--import-mode=importlib")
    assert run.returncode == 0, run.output
    assert "2 passed" in run.output
