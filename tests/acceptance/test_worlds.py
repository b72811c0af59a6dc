"""Static worlds are reused and replaced after a failure; dynamic worlds are made for one test."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run, json_lines

SOURCE = """
    import json, os
    import pytest
    import torch.distributed as dist

    static = pytest.mark.distributed(2)
    dynamic = pytest.mark.distributed(2, static=False)


    @pytest.fixture(autouse=True)
    def note(request, world, pytestconfig):
        line = {"name": request.node.name, "rank": world.rank, "pid": os.getpid(), "size": world.world_size}
        with open(pytestconfig.rootpath / "notes.jsonl", "a") as file:
            file.write(json.dumps(line) + "\\n")

    def test_plain():
        assert "RANK" not in os.environ

    @static
    def test_static_1(): dist.barrier()

    @static
    def test_static_2(): dist.barrier()

    @dynamic
    def test_dynamic_1(): dist.barrier()

    @static
    def test_fails(world):
        assert world.rank == 0
        dist.barrier()

    @dynamic
    def test_dynamic_2(): dist.barrier()

    @static
    def test_static_3(): dist.barrier()

    @static
    def test_destroys_the_group(): dist.destroy_process_group()

    @static
    def test_static_4(): dist.barrier()

    @pytest.mark.distributed(world_size=[1, 2, 3])
    def test_sizes(world, world_size):
        assert world.world_size == world_size == dist.get_world_size()

    @pytest.mark.distributed([1, 2])
    @pytest.mark.parametrize("letter", "ab")
    def test_sizes_and_letters(world, letter):
        assert letter in "ab"
"""


@pytest.fixture(scope="module")
def run(run_once: RunOnce) -> Run:
    """Return one run of tests in several worlds."""
    return run_once({"test_worlds.py": SOURCE}, "-v")


def pids_of(run: Run, name: str) -> set[int]:
    """Return the processes in which a test ran."""
    return {line["pid"] for line in json_lines(run.folder / "notes.jsonl") if line["name"] == name}


def test_outcomes(run: Run) -> None:
    """Only the test that fails fails: no test is skipped or blamed for another's failure."""
    assert [name for name, outcome in run.outcomes.items() if outcome != "passed"] == ["test_fails"], run.output


def test_static_world_is_reused(run: Run) -> None:
    """Static tests of one world run in the same processes, one per rank."""
    assert len(pids_of(run, "test_static_1")) == 2
    assert pids_of(run, "test_static_1") == pids_of(run, "test_static_2") == pids_of(run, "test_fails")


def test_world_is_replaced_after_a_failure(run: Run) -> None:
    """The test after a failed one runs in new processes."""
    assert pids_of(run, "test_static_3").isdisjoint(pids_of(run, "test_fails"))


def test_world_is_replaced_when_its_group_is_gone(run: Run) -> None:
    """A test that destroys the process group does no harm to the next one."""
    assert pids_of(run, "test_static_4").isdisjoint(pids_of(run, "test_destroys_the_group"))


def test_dynamic_worlds_are_new(run: Run) -> None:
    """Every dynamic test has processes of its own."""
    assert len(pids_of(run, "test_dynamic_1")) == 2
    assert pids_of(run, "test_dynamic_1").isdisjoint(pids_of(run, "test_dynamic_2"))


def test_plain_test_runs_in_the_controller(run: Run) -> None:
    """A plain test runs in one process, which is no rank."""
    assert len(pids_of(run, "test_plain")) == 1


@pytest.mark.parametrize("size", [1, 2, 3])
def test_sizes_parametrise(run: Run, size: int) -> None:
    """A list of world sizes runs the test once per size, with the size in its id."""
    assert run.outcome(f"test_sizes[world_size={size}]") == "passed"
    assert len(pids_of(run, f"test_sizes[world_size={size}]")) == size


def test_sizes_combine_with_parametrize(run: Run) -> None:
    """World sizes and other parameters make a product."""
    names = {name for name in run.outcomes if name.startswith("test_sizes_and_letters")}
    expected = {f"test_sizes_and_letters[{letter}-world_size={size}]" for letter in "ab" for size in (1, 2)}
    assert names in (expected, {f"test_sizes_and_letters[world_size={s}-{x}]" for x in "ab" for s in (1, 2)})


def test_fixtures_end_where_they_should(run_once: RunOnce) -> None:
    """Module and session fixtures of a rank live as long as in a plain run, over skipped tests and modules."""
    source = """
        import json, os
        import pytest

        def write(pytestconfig, world, what):
            if world.rank == 0:
                with open(pytestconfig.rootpath / "events.jsonl", "a") as file:
                    file.write(json.dumps(what) + "\\n")

        @pytest.fixture(scope="module")
        def module_fixture(pytestconfig, request):
            from lightning_disttest.world import make_world
            write(pytestconfig, make_world(), f"open {request.module.__name__}")
            yield
            write(pytestconfig, make_world(), f"close {request.module.__name__}")

        @pytest.mark.distributed(2)
        def test_one(module_fixture, pytestconfig, world):
            write(pytestconfig, world, "run")

        @pytest.mark.distributed(2)
        @pytest.mark.skip(reason="the item planned next does not come")
        def test_two(module_fixture):
            pass
    """
    run = run_once({"test_a.py": source, "test_b.py": source})
    assert run.returncode == 0, run.output
    assert json_lines(run.folder / "events.jsonl") == [
        "open test_a",
        "run",
        "close test_a",
        "open test_b",
        "run",
        "close test_b",
    ]


def test_fixture_that_fails_when_a_world_retires_is_an_error(run_once: RunOnce) -> None:
    """A module fixture that fails to end, after all tests were reported, is an error at the world's last test."""
    source = """
        import pytest

        @pytest.fixture(scope="module")
        def bad_end():
            yield
            raise RuntimeError("bad end")

        @pytest.mark.distributed(2)
        def test_user(bad_end):
            pass

        @pytest.mark.distributed(2)
        @pytest.mark.skip(reason="so the fixture stays open until the world retires")
        def test_never():
            pass
    """
    run = run_once({"test_late.py": source})
    assert run.returncode == 1
    assert "1 passed, 1 skipped, 1 error" in run.output
    assert "RuntimeError: bad end" in run.output
    assert "ERROR test_late.py::test_user" in run.output
