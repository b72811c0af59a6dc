"""What the isolation of tests is made of, in this process: states that are read, compared, adopted and set back."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import io
import multiprocessing.resource_sharer
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tqdm import tqdm  # type: ignore[import-untyped]

from lightning_disttest.engine import living, torch_state
from lightning_disttest.engine.isolation import (
    Environment,
    Isolation,
    Leak,
    RandomNumbers,
    SignalHandlers,
    WorkingDirectory,
)
from lightning_disttest.engine.living import BENIGN_CHILDREN, BENIGN_THREADS, Children, Threads
from lightning_disttest.engine.torch_state import TorchSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_disttest.engine.isolation import Aspect, Values


class Box:
    """A kind of state that is just a dict; what it had to set back is noted."""

    def __init__(self, **values: object) -> None:
        self.values: Values = dict(values)

    def read(self) -> Values:
        """Return the state."""
        return dict(self.values)

    def undo(self, base: Values, now: Values) -> list[Leak]:
        """Set all back."""
        self.values = dict(base)
        return [Leak(f"{sorted(now.items())} was {sorted(base.items())}")]


def leaks_after(aspect: Aspect, change: Callable[[], object]) -> list[str]:
    """Return what is said after a change, which is undone."""
    isolation = Isolation([aspect])
    isolation.begin()
    change()
    return [leak.what for leak in isolation.end()]


def test_no_change_is_no_leak() -> None:
    """What is as before is not set back, and nothing is said."""
    assert leaks_after(Box(a=1), lambda: None) == []


def test_change_is_undone_and_said() -> None:
    """A state that differs is set back to that of the beginning."""
    box = Box(a=1)
    assert leaks_after(box, lambda: box.values.update(a=2)) == ["[('a', 2)] was [('a', 1)]"]
    assert box.values == {"a": 1}


def test_what_is_adopted_stays() -> None:
    """Values that are set, changed or removed between are those of the base; other changes of the test are not."""
    box = Box(changed=1, removed=1, other=1)
    isolation = Isolation([box])
    isolation.begin()
    box.values["other"] = 2
    before = isolation.read()
    box.values["changed"] = 2
    box.values["new"] = 2
    del box.values["removed"]
    isolation.adopt(before)
    assert len(isolation.end()) == 1
    assert box.values == {"changed": 2, "new": 2, "other": 1}


def test_adopting_before_the_first_test_does_nothing() -> None:
    """A fixture may end when no test has begun."""
    isolation = Isolation([Box(a=1)])
    isolation.adopt([{}])
    assert isolation.end() == []


class Broken(Box):
    """A kind of state that cannot be set back."""

    def undo(self, base: Values, now: Values) -> list[Leak]:
        """Fail."""
        raise KeyError("gone")


def test_error_of_one_kind_of_state_does_not_keep_the_others() -> None:
    """It is a leak that costs the world, and what comes after it is set back."""
    broken, box = Broken(a=1), Box(a=1)
    isolation = Isolation([broken, box])
    isolation.begin()
    broken.values["a"] = box.values["a"] = 2
    first, second = isolation.end()
    assert first == Leak("changed what cannot be set back (KeyError: 'gone')", "the world is replaced", undone=False)
    assert second.undone
    assert box.values == {"a": 1}


def test_environment_that_is_replaced_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables that were set before and after it was replaced are gone, and os.environ is the genuine one again."""
    genuine = os.environ
    monkeypatch.setenv("DISTTEST_A", "old")

    def change() -> None:
        os.environ["DISTTEST_A"] = os.environ["DISTTEST_B"] = "1"
        monkeypatch.setattr(os, "environ", {"DISTTEST_C": "1"})

    assert leaks_after(Environment(), change) == [
        "replaced os.environ",
        "changed the environment variable DISTTEST_A",
        "set the environment variable DISTTEST_B",
    ]
    assert os.environ is genuine
    assert os.environ["DISTTEST_A"] == "old"
    assert not {"DISTTEST_B", "DISTTEST_C"} & os.environ.keys()


def test_environment_says_what_happened_to_each_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables are named in the order of their names, with no value: that may be a secret."""
    monkeypatch.setenv("DISTTEST_A", "old")
    monkeypatch.setenv("DISTTEST_B", "old")

    def change() -> None:
        os.environ["DISTTEST_A"] = "secret"
        del os.environ["DISTTEST_B"]
        os.environ["DISTTEST_C"] = "secret"

    assert leaks_after(Environment(), change) == [
        "changed the environment variable DISTTEST_A",
        "removed the environment variable DISTTEST_B",
        "set the environment variable DISTTEST_C",
    ]
    assert (os.environ["DISTTEST_A"], os.environ["DISTTEST_B"]) == ("old", "old")
    assert "DISTTEST_C" not in os.environ


@pytest.mark.parametrize(
    "name", ["RANK", "WORLD_SIZE", "MASTER_PORT", "SLURM_JOB_ID", "PL_GLOBAL_SEED", "CUBLAS_WORKSPACE_CONFIG"]
)
def test_variables_of_launchers_and_lightning_are_set_back_silently(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are back, or gone, and nothing is said."""
    monkeypatch.delenv(name, raising=False)
    assert leaks_after(Environment(), lambda: os.environ.update({name: "7"})) == []
    assert name not in os.environ


def test_phase_that_pytest_names_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """PYTEST_CURRENT_TEST is pytest's own, and changes during a test."""
    assert leaks_after(Environment(), lambda: monkeypatch.setenv("PYTEST_CURRENT_TEST", "other")) == []
    assert os.environ["PYTEST_CURRENT_TEST"] == "other"


def test_working_directory_that_is_gone_cannot_be_had_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the process is no good for other tests."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    monkeypatch.chdir(old)
    isolation = Isolation([WorkingDirectory()])
    isolation.begin()
    os.chdir(new)
    old.rmdir()
    (leak,) = isolation.end()
    assert not leak.undone
    assert leak.what == "changed the working directory and removed the one it began in"


def test_working_directory_may_be_gone_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that was removed has no path; that it is so still is no leak."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert leaks_after(WorkingDirectory(), lambda: None) == []


def test_handlers_are_read_as_python_tells_them() -> None:
    """The quick way to ask for handlers gives what ``signal.getsignal`` gives."""
    read = SignalHandlers().read()
    for number in signal.valid_signals():
        assert read[int(number)] == _signal.getsignal(number) == signal.getsignal(number)


def test_handler_of_the_data_loader_stays() -> None:
    """Torch sets its handler of SIGCHLD once per process: taken away, no later DataLoader would miss its workers."""

    def handler(number: int, frame: object) -> None:
        """Stand for the handler of torch."""

    handler.__module__ = "torch.utils.data._utils.signal_handling"
    before = signal.getsignal(signal.SIGCHLD)
    try:
        assert leaks_after(SignalHandlers(), lambda: signal.signal(signal.SIGCHLD, handler)) == []
        assert signal.getsignal(signal.SIGCHLD) is handler
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_torch_still_has_that_handler_where_it_is_looked_for() -> None:
    """The module that is named above sets a handler made in it."""
    from torch.utils.data._utils import signal_handling

    assert signal_handling._set_SIGCHLD_handler.__module__ == "torch.utils.data._utils.signal_handling"


def test_random_numbers_are_the_same_again_and_nothing_is_said() -> None:
    """Drawing is no leak, and the next test draws the same numbers."""
    drawn: list[float] = []
    for _ in range(2):
        assert leaks_after(RandomNumbers(), lambda: drawn.append(torch.rand(1).item())) == []
    assert drawn[0] == drawn[1]


PRECISIONS = (
    "backends.fp32_precision",
    "backends.cudnn.fp32_precision",
    "backends.cudnn.conv.fp32_precision",
    "backends.cudnn.rnn.fp32_precision",
    "backends.cuda.matmul.fp32_precision",
)


@pytest.mark.parametrize("path", [*PRECISIONS, "backends.cudnn.allow_tf32", "float32_matmul_precision"])
def test_precisions_of_float32_come_back(path: str) -> None:
    """Whichever of its interfaces a test uses, all of them say the same as before; the change is told of as one."""
    setting = torch_state._attribute(torch, path)
    if path == "float32_matmul_precision":
        change: Callable[[], Any] = lambda: torch.set_float32_matmul_precision("medium")  # noqa: E731
    elif setting is None:
        pytest.skip("not in this version of torch")
    else:
        assert setting.write is not None
        value = (not setting.read()) if path.endswith("tf32") else "ieee"
        change = lambda: setting.write(value)  # type: ignore[misc]  # noqa: E731
    settings = TorchSettings()
    before = settings.read()
    (said,) = leaks_after(settings, change)
    assert said.startswith("changed torch.")
    assert f"torch.{path} from" in said
    assert settings.read() == before


def test_setting_that_cannot_be_set_back_is_said_to_be_so() -> None:
    """Inference mode has no switch: a test that stays in it costs the world."""
    settings = TorchSettings()
    isolation = Isolation([settings])
    isolation.begin()
    mode = torch.inference_mode()
    mode.__enter__()
    try:
        leaks = isolation.end()
    finally:
        mode.__exit__(None, None, None)
    assert Leak("changed torch's inference mode from False to True", "the world is replaced", undone=False) in leaks


def test_default_device_is_none_again() -> None:
    """Not the CPU: a default device that is set, whichever, slows every call of torch down."""
    assert leaks_after(TorchSettings(), lambda: torch.set_default_device("cpu")) == [
        "changed torch's default device from None to cpu"
    ]
    assert torch_state._default_device(torch) is None


def make_trainer(**arguments: Any) -> None:
    """Make a Trainer and nothing else."""
    from lightning.pytorch import Trainer

    Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, **arguments)


@pytest.fixture
def settings() -> TorchSettings:
    """Return the settings of torch, with those as they are now that Trainers may set."""
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = False
    return TorchSettings()


@pytest.mark.parametrize("before", [None, ":4096:8"])
@pytest.mark.parametrize("arguments", [{"deterministic": True}, {"deterministic": "warn"}, {"benchmark": True}])
def test_what_a_trainer_sets_is_set_back_silently(
    settings: TorchSettings, arguments: dict[str, Any], before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each Trainer, also where its variable has the value already that Lightning gives it."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", before or "")
    if before is None:
        monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    for _ in range(2):
        assert leaks_after(settings, lambda: make_trainer(**arguments)) == []
        assert not torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.benchmark


def test_what_a_test_sets_itself_is_told_of_after_trainers(
    settings: TorchSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither an earlier Trainer that set the same nor the variable of Lightning is an excuse."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    for argument in ("deterministic", "benchmark"):
        assert leaks_after(settings, lambda: make_trainer(**{argument: True})) == []  # noqa: B023  called at once

    def change() -> None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = True
        make_trainer(benchmark=True)

    assert leaks_after(settings, change) == [
        "changed torch.use_deterministic_algorithms from (False, False) to (True, False)",
        "changed torch.backends.cudnn.benchmark from False to True",
    ]
    assert not torch.are_deterministic_algorithms_enabled()


def test_torch_is_not_imported() -> None:
    """Where the tests have not imported torch and numpy, they are not imported to be looked at."""
    code = (
        "import sys\n"
        "from lightning_disttest.engine.leak_guard import LeakGuard\n"
        "guard = LeakGuard(None, False)\n"
        "guard._isolation.begin()\n"
        "assert guard._isolation.end() == []\n"
        "print(sorted({'torch', 'numpy'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_thread_is_told_of_only_while_it_runs() -> None:
    """A thread that runs on is a leak that cannot be undone; one that has ended is none."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="waiting", daemon=True)
    isolation = Isolation([Threads()])
    isolation.begin()
    thread.start()
    try:
        assert isolation.end() == [Leak("left the thread 'waiting' running", "the world is replaced", undone=False)]
    finally:
        stop.set()
        thread.join()
    assert isolation.end() == []


def test_child_is_told_of_only_while_it_runs() -> None:
    """A child that runs on is a leak that cannot be undone; one that has ended is none, though nobody waited for it."""
    isolation = Isolation([Children()])
    isolation.begin()
    with subprocess.Popen(["cat", "-", "x" * 100], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        (leak,) = isolation.end()
        assert leak.what == "left the child process " + repr("cat - " + "x" * 54) + " running"
        assert not leak.undone
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert isolation.end() == []


def run_in_thread(function: Callable[[], object]) -> None:
    """Run a function in a native thread, which Python learns of when it asks for its current thread."""
    import _thread

    done = threading.Event()

    def run() -> None:
        function()
        done.set()

    _thread.start_new_thread(run, ())
    assert done.wait(20)


def benign(thread: threading.Thread) -> list[str]:
    """Return the names of the entries that a thread is excused by."""
    return [entry.name for entry in BENIGN_THREADS if entry.is_it(thread)]


def test_native_threads_are_benign() -> None:
    """A thread of C++ that runs Python code looks like a thread of Python from then on."""
    found: list[threading.Thread] = []
    run_in_thread(lambda: found.append(threading.current_thread()))
    assert benign(found[0]) == ["native threads that have run Python code"]


def test_monitor_of_tqdm_is_benign() -> None:
    """It is the thread that tqdm itself says it has."""
    list(tqdm(range(2), file=io.StringIO()))
    assert tqdm.monitor is not None
    assert benign(tqdm.monitor) == ["tqdm's monitor"]


def test_resource_sharer_is_benign() -> None:
    """It serves descriptors in a thread that is known by its target."""
    multiprocessing.resource_sharer.DupFd(0)
    (thread,) = [one for one in threading.enumerate() if benign(one) == ["multiprocessing's resource sharer"]]
    multiprocessing.resource_sharer.stop()
    assert not thread.is_alive()


def test_compile_threads_are_benign() -> None:
    """The pool is the one of torch.compile, not any pool."""
    import torch._inductor.async_compile as async_compile

    pool = async_compile.AsyncCompile.pool()
    pool.submit(int).result()
    assert {name for thread in pool._threads for name in benign(thread)} == {"torch.compile's pool of threads"}
    other = threading.Thread(target=int, name="ThreadPoolExecutor-0_0")
    assert benign(other) == []


def test_reader_of_compile_workers_is_benign() -> None:
    """It has the name that torch gives it."""
    from torch._inductor.compile_worker import subproc_pool

    assert subproc_pool.__file__ is not None
    assert 'name="InductorSubproc"' in Path(subproc_pool.__file__).read_text()
    assert benign(threading.Thread(name="InductorSubproc")) == ["torch.compile's reader of its compile workers"]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (
            "python -s -c from multiprocessing.resource_tracker import main;main(9)",
            "multiprocessing's resource tracker",
        ),
        ("python -c from multiprocessing.forkserver import main; main(5)", "multiprocessing's fork server"),
        ("python x/__main__.py --pickler=torch._inductor.a.B --kind=fork", "torch.compile's compile workers"),
        ("/x/torch/bin/torch_shm_manager", "torch's manager of shared memory"),
        ("python -m pytest", None),
        ("sleep 1000", None),
    ],
)
def test_benign_children_are_known_by_their_command(command: str, name: str | None) -> None:
    """Each entry knows its own process, and no other."""
    assert [entry.name for entry in BENIGN_CHILDREN if entry.command in command] == ([name] if name else [])
    assert living._is_benign_command(command.split(" ")) == (name is not None)
