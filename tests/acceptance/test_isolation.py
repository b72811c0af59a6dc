"""Tests in a static world do not see what the others changed, and a leak is told of at the test that made it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run, json_lines, lines_with

NOTES = """
    import json, os
    import pytest

    @pytest.fixture(autouse=True)
    def note(request, world, pytestconfig):
        line = {"name": request.node.name, "rank": world.rank, "pid": os.getpid()}
        with open(pytestconfig.rootpath / "notes.jsonl", "a") as file:
            file.write(json.dumps(line) + "\\n")
"""

STATE = """
    import os, random, signal, threading
    import numpy, pytest, torch
    import torch.distributed as dist

    def handle(number, frame):
        pass

    def groups():
        return len(dist.distributed_c10d._world.pg_map)

    def set_deterministic():
        torch.use_deterministic_algorithms(True, warn_only=True)

    def deterministic():
        return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()

    cudnn, cuda = torch.backends.cudnn, torch.backends.cuda
    FIRST, ENVIRON = {}, os.environ
    CASES = {
        "set variable": (lambda: os.environ.update(LEAKED="1"), lambda: os.environ.get("LEAKED")),
        "changed variable": (lambda: os.environ.update(HOME="/leaked"), lambda: os.environ["HOME"]),
        "replaced variables": (lambda: setattr(os, "environ", dict(os.environ)), lambda: os.environ is ENVIRON),
        "removed variable": (lambda: os.environ.pop("PATH"), lambda: os.environ.get("PATH")),
        "launcher variable": (lambda: os.environ.update(WORLD_SIZE="7"), lambda: os.environ["WORLD_SIZE"]),
        "working directory": (lambda: os.chdir("/"), os.getcwd),
        "random": (random.random, random.getstate),
        "numpy": (numpy.random.rand, lambda: numpy.random.get_state()[1].tolist() + [numpy.random.get_state()[2]]),
        "torch": (lambda: torch.rand(1), lambda: torch.get_rng_state().tolist()),
        "seed": (lambda: torch.manual_seed(5), torch.initial_seed),
        "signal": (lambda: signal.signal(signal.SIGUSR1, handle), lambda: signal.getsignal(signal.SIGUSR1)),
        "alarm": (lambda: signal.alarm(1000), lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0),
        "dtype": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
        "device": (lambda: torch.set_default_device("meta"), lambda: torch.ones(1).device),
        "deterministic": (set_deterministic, deterministic),
        "cudnn deterministic": (lambda: setattr(cudnn, "deterministic", True), lambda: cudnn.deterministic),
        "cudnn benchmark": (lambda: setattr(cudnn, "benchmark", True), lambda: cudnn.benchmark),
        "cudnn enabled": (lambda: setattr(cudnn, "enabled", False), lambda: cudnn.enabled),
        "matmul": (lambda: torch.set_float32_matmul_precision("high"), torch.get_float32_matmul_precision),
        "threads": (lambda: torch.set_num_threads(3), torch.get_num_threads),
        "grad": (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
        "anomaly": (lambda: torch.autograd.set_detect_anomaly(True), torch.is_anomaly_enabled),
        "attention": (lambda: cuda.enable_flash_sdp(False), cuda.flash_sdp_enabled),
        "warn always": (lambda: torch.set_warn_always(True), torch.is_warn_always_enabled),
        "group": (lambda: dist.new_group([0, 1]), groups),
        "three groups": (lambda: [dist.new_group([0, 1]) for _ in range(3)], groups),
        "group of rank 1": (lambda: dist.new_group([1]), groups),
    }
    STEPS = [(case, step) for case in CASES for step in ("changes", "after")]

    @pytest.mark.distributed(2)
    @pytest.mark.parametrize(("case", "step"), STEPS, ids=[f"{case}-{step}" for case, step in STEPS])
    def test_state(case, step, world):
        change, value = CASES[case]
        if step == "changes":
            FIRST[case] = value()
            change()
            assert value() != FIRST[case] or case == "group of rank 1" and world.rank == 0
        else:
            assert value() == FIRST[case]
"""
BOTH = " (ranks 0-1)"
SET_BACK = "; it was set back" + BOTH
DESTROYED = "; destroyed before the next test"
ADVICE = ". Undo it at the end of the test or of its fixture"
# What is said of each case; nothing of those that are None, because every test does them.
SAID = {
    "set variable": "set the environment variable LEAKED; it was removed" + BOTH,
    "changed variable": "changed the environment variable HOME" + SET_BACK,
    "replaced variables": "replaced os.environ" + SET_BACK,
    "removed variable": "removed the environment variable PATH" + SET_BACK,
    "launcher variable": None,
    "working directory": "changed the working directory" + SET_BACK,
    "random": None,
    "numpy": None,
    "torch": None,
    "seed": None,
    "signal": "changed the handler of SIGUSR1" + SET_BACK,
    "alarm": "left a timer of SIGALRM running; it was stopped" + BOTH,
    "dtype": "changed torch's default dtype from torch.float32 to torch.float64" + SET_BACK,
    "device": "changed torch's default device from None to meta" + SET_BACK,
    "deterministic": "changed torch.use_deterministic_algorithms from (False, False) to (True, True)" + SET_BACK,
    "cudnn deterministic": "changed torch.backends.cudnn.deterministic from False to True" + SET_BACK,
    "cudnn benchmark": "changed torch.backends.cudnn.benchmark from False to True" + SET_BACK,
    "cudnn enabled": "changed torch.backends.cudnn.enabled from True to False" + SET_BACK,
    "matmul": r"changed .*torch.float32_matmul_precision from highest to high\b.*" + SET_BACK,
    "threads": r"changed torch's number of threads from \d+ to 3" + SET_BACK,
    "grad": "changed torch's grad mode from True to False" + SET_BACK,
    "anomaly": "changed torch's anomaly mode from (False, True) to (True, True)" + SET_BACK,
    "attention": "changed torch.backends.cuda.flash_sdp_enabled from True to False" + SET_BACK,
    "warn always": "changed torch.set_warn_always from False to True" + SET_BACK,
    "group": "left a process group" + DESTROYED + BOTH,
    "three groups": "left 3 process groups" + DESTROYED + BOTH,
    "group of rank 1": "left a process group" + DESTROYED + " (rank 1)",
}


def leaks_of(run: Run) -> dict[str, list[str]]:
    """Return what the summary of warnings says of leaks, by the name of the test, without the advice at its end."""
    section = run.output.partition(" warnings summary ")[2].partition("\n-- Docs:")[0]
    leaks: dict[str, list[str]] = {}
    names: list[str] = []
    for block in section.split("\n\n"):
        lines = block.splitlines()
        names = [line.partition("::")[2] for line in lines if "::" in line and not line.startswith(" ")]
        said = [line.partition("LeakWarning: the test ")[2] for line in lines if "LeakWarning: " in line]
        said = ["".join(line.rsplit(ADVICE, 1)) for line in said if ADVICE in line]
        for name in names if said else []:
            leaks.setdefault(name, []).extend(said)
    return leaks


def pids_of(run: Run, name: str) -> dict[int, int]:
    """Return the process of each rank in which a test ran."""
    notes = json_lines(run.folder / "notes.jsonl")
    return dict(sorted((line["rank"], line["pid"]) for line in notes if line["name"] == name))


def is_alive(pid: int) -> bool:
    """Tell whether there is a process of that number."""
    return Path(f"/proc/{pid}").exists()


@pytest.fixture(scope="module")
def state(run_once: RunOnce) -> Run:
    """Return a run in which each kind of state is changed by one test and looked at by the next."""
    return run_once({"conftest.py": NOTES, "test_state.py": STATE})


def test_every_case_is_expected_to_say_something(state: Run) -> None:
    """The run has the cases that the tests below ask for, and all of its tests pass."""
    assert set(state.outcomes) == {f"test_state[{c}-{s}]" for c in SAID for s in ("changes", "after")}
    assert set(state.outcomes.values()) == {"passed"}, state.output
    assert state.returncode == 0


@pytest.mark.parametrize("case", SAID)
def test_change_is_undone_in_the_same_processes(state: Run, case: str) -> None:
    """The next test runs in the same two processes and finds the value of before."""
    assert state.outcome(f"test_state[{case}-after]") == "passed"
    pids = pids_of(state, f"test_state[{case}-after]")
    assert len(pids) == 2
    assert pids == pids_of(state, f"test_state[{case}-changes]") == pids_of(state, "test_state[set variable-changes]")


@pytest.mark.parametrize(("case", "said"), SAID.items())
def test_leak_is_told_of_once_at_its_test(state: Run, case: str, said: str | None) -> None:
    """The warning says what was changed, what became of it and on which ranks; the next test has none."""
    leaks = leaks_of(state)
    assert f"test_state[{case}-after]" not in leaks
    found = leaks.get(f"test_state[{case}-changes]", [])
    assert len(found) == (said is not None)
    for text in found:
        assert text == said or re.fullmatch(str(said).replace("(r", r"\(r").replace("1)", r"1\)"), text)


STRICT = """
    import os, threading, time
    import pytest, torch

    pytestmark = pytest.mark.distributed(2)

    @pytest.fixture
    def careless():
        os.environ["BY_FIXTURE"] = "1"

    def test_clean(monkeypatch, tmp_path):
        monkeypatch.setenv("UNDONE", "1")
        monkeypatch.chdir(tmp_path)
        torch.rand(1)

    def test_sets(): os.environ["LEAKED"] = "1"

    def test_sees_nothing(): assert not {"LEAKED", "BY_FIXTURE"} & os.environ.keys()

    def test_on_one_rank(world):
        if world.rank == 1:
            torch.set_default_dtype(torch.float64)
            os.environ["LEAKED"] = "1"

    def test_careless(careless): pass

    def test_thread():
        threading.Thread(target=time.sleep, args=(1000,), name="spinning", daemon=True).start()

    def test_fails():
        os.environ["LEAKED"] = "1"
        raise ValueError("its own error")

    def test_skips(careless): pytest.skip("late")

    def test_last(): assert not {"LEAKED", "BY_FIXTURE"} & os.environ.keys()
"""
LEAKING = ("test_sets", "test_on_one_rank", "test_careless", "test_thread", "test_fails", "test_skips")


@pytest.fixture(scope="module")
def strict(run_once: RunOnce) -> Run:
    """Return a run in which leaks are failures."""
    return run_once({"test_strict.py": STRICT}, "--disttest-strict-leaks")


def test_strict_fails_exactly_the_leaking_tests(strict: Run) -> None:
    """A test that leaks has an error in its teardown, beside its own outcome; no other has."""
    assert {name for name, outcome in strict.outcomes.items() if "error" in outcome} == set(LEAKING), strict.output
    assert strict.outcome("test_fails") == "failed+error"
    assert strict.outcome("test_skips") == "skipped+error"
    assert "ValueError: its own error" in strict.text("test_fails")
    assert leaks_of(strict) == {}
    assert "LeakWarning" not in strict.output


def test_strict_failure_says_what_where_and_what_to_do(strict: Run) -> None:
    """The text has the test, the rank, each leak with what became of it, and what to do."""
    text = strict.text("test_on_one_rank")
    assert "::test_on_one_rank left something behind on rank 1 of 2, where the next test would find it:" in text
    assert "on rank 0 of 2" not in text
    assert "  - it changed torch's default dtype from torch.float32 to torch.float64; it was set back\n" in text
    assert "  - it set the environment variable LEAKED; it was removed\n" in text
    assert "Undo it at the end of the test or of its fixture (monkeypatch undoes variables" in text
    assert "because of --disttest-strict-leaks." in text
    for rank in (0, 1):
        assert f"left something behind on rank {rank} of 2" in strict.text("test_thread")
    assert "  - it left the thread 'spinning' running; the world is replaced\n" in strict.text("test_thread")
    assert "set the environment variable BY_FIXTURE" in strict.text("test_careless")


def test_warnings_can_be_hidden(run_once: RunOnce) -> None:
    """Filters of pytest hold for the warnings, by their public name; what leaked is undone all the same."""
    run = run_once({"test_strict.py": STRICT}, "-W", "ignore::lightning_disttest.LeakWarning")
    assert [name for name, outcome in run.outcomes.items() if outcome == "failed"] == ["test_fails"], run.output
    assert run.outcome("test_last") == "passed"
    assert leaks_of(run) == {}
    assert "LeakWarning: " not in run.output  # without the colon it is there, in the command that runs a test alone


def test_warnings_can_be_errors(run_once: RunOnce) -> None:
    """Where warnings are errors, all leaks of a test are in its error; a leak of a failing test is told of too."""
    run = run_once({"test_strict.py": STRICT}, "-W", "error")
    assert {name for name, outcome in run.outcomes.items() if "error" in outcome} == set(LEAKING), run.output
    text = run.text("test_on_one_rank")
    assert "::test_on_one_rank left something behind on rank 1 of 2, where the next test would find it:" in text
    assert "  - it changed torch's default dtype from torch.float32 to torch.float64; it was set back\n" in text
    assert "  - it set the environment variable LEAKED; it was removed\n" in text
    assert "Undo it at the end of the test or of its fixture (monkeypatch undoes variables" in text
    assert "It is an error and no warning because of a filter that makes warnings errors." in text
    assert run.outcome("test_fails") == "failed+error"


ENDS = """
    import os
    import pytest

    pytestmark = pytest.mark.distributed(2)

    def own_error():
        raise ValueError("the end's own error")

    @pytest.fixture(params=[own_error, KeyboardInterrupt, pytest.exit], ids=["error", "interrupt", "exit"])
    def end(request):
        yield
        os.environ["LEAKED"] = "1"
        if request.param is KeyboardInterrupt:
            raise KeyboardInterrupt("by hand")
        request.param() if request.param is own_error else request.param("enough")

    def test_ends(end): assert "LEAKED" not in os.environ
    def test_never(): pass
"""


@pytest.fixture(scope="module", params=["--disttest-strict-leaks", "-Werror", ""], ids=["strict", "error", "warning"])
def ends(run_once: RunOnce, request: pytest.FixtureRequest) -> Run:
    """Return a run of tests that leak, and in which the end of a fixture raises."""
    return run_once({"test_ends.py": ENDS}, *filter(None, [request.param]))


def test_error_of_the_end_is_shown_as_it_is(ends: Run) -> None:
    """The error that the fixture raised is the failure, with its traceback, and in no group with the leak."""
    assert ends.outcome("test_ends[error]") == "error"
    text = ends.text("test_ends[error]")
    assert "ValueError: the end's own error" in text
    assert 'raise ValueError("the end\'s own error")' in text
    assert "ExceptionGroup" not in ends.output
    assert "left something behind" not in text


def test_interrupt_and_exit_stay_what_they_are(ends: Run) -> None:
    """A KeyboardInterrupt is told as such, and ``pytest.exit`` ends the run, though the test leaks as well."""
    assert "KeyboardInterrupt: by hand" in ends.text("test_ends[interrupt]")
    assert "Exit: enough" in ends.output, ends.output
    assert ends.returncode == 2
    assert "test_never" not in ends.outcomes


def test_leak_is_told_beside_the_error(ends: Run) -> None:
    """It is a warning then, also where leaks are failures."""
    leak = "set the environment variable LEAKED; it was removed (ranks 0-1)"
    assert leaks_of(ends)["test_ends[error]"] == [leak]
    assert leaks_of(ends)["test_ends[interrupt]"] == [leak]


def test_warning_says_what_to_do(ends: Run) -> None:
    """What leaked, what was done and what to do, and on which ranks, are in one line."""
    line = f"LeakWarning: the test set the environment variable LEAKED; it was removed{ADVICE} (ranks 0-1)"
    assert lines_with(ends.output, line)


WIDER = """
    import os, random, subprocess, threading, unittest
    import pytest, torch
    import torch.distributed as dist

    pytestmark = pytest.mark.distributed(2)

    @pytest.fixture(scope="session")
    def session_state():
        os.environ["OF_SESSION"] = "1"
        yield
        del os.environ["OF_SESSION"]

    @pytest.fixture(scope="module")
    def module_state(session_state, tmp_path_factory):
        before, dtype, seed = os.getcwd(), torch.get_default_dtype(), random.getstate()
        os.chdir(tmp_path_factory.getbasetemp())
        torch.set_default_dtype(torch.float64)
        torch.manual_seed(7)
        group = dist.new_group([0, 1])
        stop = threading.Event()
        thread = threading.Thread(target=stop.wait)
        thread.start()
        child = subprocess.Popen(["sleep", "1000"])
        yield group, thread, child
        child.kill()
        child.wait()
        stop.set()
        thread.join()
        os.chdir(before)
        torch.set_default_dtype(dtype)

    def check(module_state):
        group, thread, child = module_state
        value = torch.ones(1)
        dist.all_reduce(value, group=group)
        assert value.item() == 2
        assert thread.is_alive()
        assert child.poll() is None
        assert torch.get_default_dtype() == torch.float64
        assert os.environ["OF_SESSION"] == "1"
        return torch.rand(1).item()

    DRAWN = []

    @pytest.mark.parametrize("number", range(3))
    def test_module(module_state, number):
        DRAWN.append(check(module_state))
        assert DRAWN[0] == DRAWN[-1]

    class TestClass:
        @pytest.fixture(scope="class", autouse=True)
        def class_state(self):
            os.environ["OF_CLASS"] = "1"
            yield
            os.environ["LEFT_AT_THE_END"] = "1"
            del os.environ["OF_CLASS"]

        def test_one(self): assert "OF_CLASS" in os.environ
        def test_two(self): assert "OF_CLASS" in os.environ

    class TestXunit:
        @classmethod
        def setup_class(cls): os.environ["OF_SETUP_CLASS"] = "1"
        @classmethod
        def teardown_class(cls): del os.environ["OF_SETUP_CLASS"]
        def setup_method(self): os.environ["OF_METHOD"] = "1"
        def teardown_method(self): del os.environ["OF_METHOD"]
        def test_one(self): assert "OF_SETUP_CLASS" in os.environ
        def test_two(self): assert {"OF_SETUP_CLASS", "OF_METHOD"} < os.environ.keys()

    class TestUnittest(unittest.TestCase):
        @classmethod
        def setUpClass(cls): os.environ["OF_SETUP_CLASS"] = "2"
        @classmethod
        def tearDownClass(cls): del os.environ["OF_SETUP_CLASS"]
        def setUp(self): os.environ["OF_METHOD"] = "1"
        def tearDown(self): del os.environ["OF_METHOD"]
        def test_one(self): assert "OF_SETUP_CLASS" in os.environ
        def test_two(self): assert {"OF_SETUP_CLASS", "OF_METHOD"} < os.environ.keys()

    @pytest.fixture(scope="module", params=["a", "b", "nothing", "c"])
    def with_params(request):
        if request.param != "nothing":
            os.environ["PARAM"] = request.param
        yield request.param
        os.environ.pop("PARAM", None)

    def test_param_1(with_params): assert os.environ.get("PARAM", "nothing") == with_params
    def test_param_2(with_params): assert os.environ.get("PARAM", "nothing") == with_params

    def test_asks_late(request):
        request.getfixturevalue("late")

    @pytest.fixture(scope="module")
    def late():
        os.environ["LATE"] = "1"
        yield
        del os.environ["LATE"]

    def test_after_it_asked(): assert os.environ["LATE"] == "1"
    def test_module_is_still_there(module_state): check(module_state)
    def test_changed_at_the_end_of_a_fixture(): assert os.environ.pop("LEFT_AT_THE_END") == "1"
    def test_leaks(): os.environ["LEAKED"] = "1"
    class TestLeaks(unittest.TestCase):
        def setUp(self): os.environ["LEAKED"] = "1"
        def test_leaks(self): assert "LEAKED" in os.environ
    def test_clean(module_state): assert "LEAKED" not in os.environ
"""


@pytest.fixture(scope="module")
def wider(run_once: RunOnce) -> Run:
    """Return a run of tests whose fixtures of wider scope change state."""
    return run_once({"conftest.py": NOTES, "test_wider.py": WIDER}, "-v")


def test_fixtures_of_wider_scope_may_change_state(wider: Run) -> None:
    """What they change is there for all of their tests, in one world, and nobody is blamed for it."""
    assert set(wider.outcomes.values()) == {"passed"}, wider.output
    assert len(wider.outcomes) == 24
    assert len({tuple(pids_of(wider, name.rpartition("::")[2]).items()) for name in wider.outcomes}) == 1


def test_leaks_beside_fixtures_of_wider_scope_are_found(wider: Run) -> None:
    """In the same run a leak is told of, in a function and in the setUp of a TestCase; so is what a test takes away."""
    assert leaks_of(wider) == {
        "test_leaks": ["set the environment variable LEAKED; it was removed (ranks 0-1)"],
        "TestLeaks::test_leaks": ["set the environment variable LEAKED; it was removed (ranks 0-1)"],
        "test_changed_at_the_end_of_a_fixture": [
            "removed the environment variable LEFT_AT_THE_END; it was set back (ranks 0-1)"
        ],
    }


LIVING = """
    import concurrent.futures, json, multiprocessing, os, subprocess, threading, time
    import pytest, torch
    import torch.distributed as dist
    from tqdm import tqdm

    pytestmark = pytest.mark.distributed(2)
    LEFT = []

    def spin(): time.sleep(1000)

    def test_thread(world):
        if world.rank == 1:
            threading.Thread(target=spin, name="spinning").start()

    def test_after_thread(): assert "spinning" not in [thread.name for thread in threading.enumerate()]

    def test_child(pytestconfig, world):
        child = subprocess.Popen(["sleep", "12345"])
        (pytestconfig.rootpath / f"child-{world.rank}").write_text(str(child.pid))

    def test_after_child(pytestconfig, world):
        child = int((pytestconfig.rootpath / f"child-{world.rank}").read_text())
        assert not os.path.exists(f"/proc/{child}")

    def test_forked_child(world):
        if world.rank == 0:
            multiprocessing.get_context("fork").Process(target=spin).start()

    def test_after_forked_child(): assert multiprocessing.active_children() == []

    def test_thread_that_ends(): threading.Thread(target=time.sleep, args=(0.05,)).start()
    def test_child_that_ends(): LEFT.append(subprocess.Popen(["true"]))
    def test_progress_bar(): list(tqdm(range(3)))
    def test_resource_tracker():
        memory = multiprocessing.shared_memory.SharedMemory(create=True, size=8)
        memory.close()
        memory.unlink()
    def test_in_a_cycle():
        pool = concurrent.futures.ThreadPoolExecutor(1)
        pool.submit(int).result()
        cycle = [pool]
        cycle.append(cycle)
    def test_data_loader(): assert len(list(torch.utils.data.DataLoader(range(4), num_workers=1))) == 4
    def test_spawned_child_that_was_joined():
        child = multiprocessing.get_context("forkserver").Process(target=int)
        child.start()
        child.join()

    @pytest.mark.parametrize("number", range(200))
    def test_many_groups(number):
        dist.barrier(group=dist.new_group([0, 1]))

    def test_default_group_is_the_only_one():
        assert len(dist.distributed_c10d._world.pg_map) == 1

    def test_destroys_a_group_of_others(shared_group):
        dist.destroy_process_group(shared_group)

    @pytest.fixture(scope="module")
    def shared_group():
        return dist.new_group([0, 1])

    def test_uses_the_group(shared_group):
        dist.barrier(group=shared_group)
"""
IN_ONE_WORLD = (
    "test_after_forked_child",
    "test_thread_that_ends",
    "test_child_that_ends",
    "test_progress_bar",
    "test_resource_tracker",
    "test_in_a_cycle",
    "test_data_loader",
    "test_spawned_child_that_was_joined",
    "test_many_groups[0]",
    "test_many_groups[199]",
    "test_default_group_is_the_only_one",
    "test_destroys_a_group_of_others",
)


@pytest.fixture(scope="module")
def living(run_once: RunOnce) -> Run:
    """Return a run of tests that leave threads, child processes and groups."""
    source = "import multiprocessing.shared_memory\n" + LIVING.replace("\n    ", "\n")
    return run_once({"conftest.py": NOTES, "test_living.py": source})


def test_all_of_them_pass(living: Run) -> None:
    """A leak is no failure, and the test after it has a world in order."""
    assert set(living.outcomes.values()) == {"passed"}, living.output


@pytest.mark.parametrize("name", ["thread", "child", "forked_child"])
def test_world_is_replaced_after_what_cannot_be_undone(living: Run, name: str) -> None:
    """The next test runs in other processes, and those of before are gone."""
    before, after = pids_of(living, f"test_{name}"), pids_of(living, f"test_after_{name}")
    assert set(before.values()).isdisjoint(after.values())
    assert not any(is_alive(pid) for pid in before.values())


def test_leaked_child_is_dead(living: Run) -> None:
    """A child process that a test has left does not survive its world."""
    for rank in (0, 1):
        assert not is_alive(int((living.folder / f"child-{rank}").read_text()))


def test_leaks_that_live_are_told_of(living: Run) -> None:
    """The thread, the children and the groups are named, with their ranks; not what ends at once or is benign."""
    leaks = leaks_of(living)
    assert leaks.pop("test_thread") == ["left the thread 'spinning' running; the world is replaced (rank 1)"]
    assert leaks.pop("test_child") == [
        "left the child process 'sleep 12345' running; the world is replaced (ranks 0-1)"
    ]
    assert leaks.pop("test_forked_child") == [
        "left a child process forked from it running; the world is replaced (rank 0)"
    ]
    assert leaks.pop("test_destroys_a_group_of_others") == [
        "destroyed a process group that was there before it; the world is replaced (ranks 0-1)"
    ]
    assert {name.partition("[")[0] for name in leaks} <= {"test_many_groups"}
    assert living.output.count(f"left a process group{DESTROYED}{ADVICE} (ranks 0-1)") >= 1


@pytest.mark.parametrize("name", IN_ONE_WORLD)
def test_world_is_kept_otherwise(living: Run, name: str) -> None:
    """Threads and children that end, benign ones and groups do not cost a world."""
    assert pids_of(living, name) == pids_of(living, "test_after_forked_child")


def test_group_that_a_test_destroyed_is_there_again(living: Run) -> None:
    """The world is replaced, so the fixture makes its group anew."""
    others = pids_of(living, "test_destroys_a_group_of_others")
    assert set(pids_of(living, "test_uses_the_group").values()).isdisjoint(others.values())


LIGHTNING = """
    import os, random
    import numpy, pytest, torch
    from lightning.pytorch import seed_everything
    from lightning.pytorch.demos.boring_classes import BoringModel

    pytestmark = pytest.mark.distributed(2)
    NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
    NAMES += ("CUBLAS_WORKSPACE_CONFIG",)
    FIRST = {}

    @pytest.fixture(scope="module", autouse=True)
    def threads():
        torch.set_num_threads(3)  # on no machine what Lightning chooses for two ranks of this suite

    def draw():
        return random.random(), float(numpy.random.rand()), torch.rand(1).item()

    def test_first():
        FIRST["environment"] = {name: os.environ.get(name) for name in NAMES}
        FIRST["threads"] = torch.get_num_threads()
        FIRST["drawn"] = draw()

    def test_seeds():
        seed_everything(1, workers=True)
        assert os.environ["PL_GLOBAL_SEED"] == "1"

    def test_fits(trainer_factory):
        trainer = trainer_factory(max_epochs=1, limit_train_batches=2, limit_val_batches=2)
        trainer.fit(BoringModel())
        assert trainer.global_step == 2

    def test_fits_deterministically(trainer_factory):
        trainer = trainer_factory(fast_dev_run=True, deterministic=True)
        trainer.fit(BoringModel())
        assert torch.are_deterministic_algorithms_enabled()

    def test_benchmarks(trainer_factory):
        trainer_factory(benchmark=True)
        assert torch.backends.cudnn.benchmark

    def test_nothing_is_left(world):
        assert not torch.backends.cudnn.benchmark
        assert {name: os.environ.get(name) for name in NAMES} == FIRST["environment"]
        assert os.environ["WORLD_SIZE"] == "2" and os.environ["RANK"] == str(world.rank)
        assert not {"PL_GLOBAL_SEED", "PL_SEED_WORKERS"} & os.environ.keys()
        assert os.environ.get("CUBLAS_WORKSPACE_CONFIG") == FIRST["environment"]["CUBLAS_WORKSPACE_CONFIG"]
        assert "OMP_NUM_THREADS" not in os.environ
        assert not torch.are_deterministic_algorithms_enabled()
        assert torch.get_num_threads() == FIRST["threads"] == 3
        assert draw() == FIRST["drawn"]
"""


@pytest.mark.parametrize("env", [{}, {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}], ids=["unset", "set before"])
def test_what_lightning_sets_is_set_back_silently(run_once: RunOnce, env: dict[str, str]) -> None:
    """Variables and settings of seed_everything and of a fit are gone after the test, and are no leak.

    So it is where the variable that Lightning sets for determinism was set before the run.
    """
    files = {"conftest.py": NOTES, "test_fit.py": LIGHTNING}
    run = run_once(files, "-W", "error::lightning_disttest.LeakWarning", env=env)
    assert run.returncode == 0, run.output
    assert run.outcomes["test_nothing_is_left"] == "passed"
    assert pids_of(run, "test_nothing_is_left") == pids_of(run, "test_first")


GROWING = """
    import pytest

    KEPT = []

    @pytest.mark.distributed(1)
    @pytest.mark.parametrize("number", range(20))
    def test_grows(number):
        KEPT.append(b"x" * (8 << 20))

    @pytest.mark.distributed(2)
    @pytest.mark.parametrize("number", range(20))
    def test_grows_not(number):
        assert len(b"x" * (8 << 20))

    @pytest.fixture(scope="module", autouse=True)
    def ends(world):
        yield
        assert world.world_size == 2 or len(KEPT) < 3, "the end of the fixture was run"
"""


def worlds_of(run: Run, name: str) -> int:
    """Return the number of worlds that the tests of a name had."""
    return len({tuple(pids_of(run, f"{name}[{number}]").items()) for number in range(20)})


def test_world_that_grows_is_replaced(run_once: RunOnce) -> None:
    """After a growth of more than the limit the next test has new processes, and fixtures end in order."""
    run = run_once({"conftest.py": NOTES, "test_growth.py": GROWING}, "--disttest-world-memory=30")
    assert worlds_of(run, "test_grows") > 1, run.output
    assert worlds_of(run, "test_grows_not") == 1
    assert "the end of the fixture was run" in run.text("test_grows[7]")
    assert {run.outcome(f"test_grows[{number}]") for number in range(7)} == {"passed"}


def test_world_may_grow_without_limit(run_once: RunOnce) -> None:
    """With 0 no world is replaced."""
    run = run_once({"conftest.py": NOTES, "test_growth.py": GROWING}, "--disttest-world-memory=0")
    assert worlds_of(run, "test_grows") == worlds_of(run, "test_grows_not") == 1, run.output
