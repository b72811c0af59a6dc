"""Processes from a warm interpreter, as real ones: what a spawned process has is theirs, and none is left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from lightning_disttest.engine import processes, warm_spawn
from lightning_disttest.errors import WarmInterpreterLost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

LIMIT_S = 30.0
OWNER = """
import os, signal, sys
from lightning_disttest.engine import warm_spawn
from tests.unit.test_warm_spawn import stay

if __name__ == "__main__":
    context = warm_spawn.WarmContext([])
    reader, writer = context.Pipe(False)
    process = context.Process(target=stay, args=(writer,))
    process.start()
    print(reader.recv(), warm_spawn._interpreter._process.pid, flush=True)
    if "kill" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    process.kill()
    process.join()
    warm_spawn.stop_interpreter()
"""


@pytest.fixture(scope="module", autouse=True)
def _interpreter_ends() -> Iterator[None]:
    """End the interpreter after the tests."""
    yield
    warm_spawn.stop_interpreter()


def call(function: Callable[..., object], *arguments: object) -> Any:
    """Return what ``function`` returns in a process."""
    context = warm_spawn.WarmContext(["colorsys"])
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=answer, args=(writer, function, arguments))
    process.start()
    writer.close()
    assert reader.poll(LIMIT_S)
    value = reader.recv()
    process.join(LIMIT_S)
    assert process.exitcode == 0
    return value


def answer(writer: Connection, function: Callable[..., object], arguments: tuple[object, ...]) -> None:
    """Tell the parent what a function returns."""
    writer.send(function(*arguments))


def stay(writer: Connection | None = None) -> None:
    """Tell the pid, and wait to be ended."""
    if writer is not None:
        writer.send(os.getpid())
    signal.pause()


def stay_without_a_parent() -> None:
    """Do not end with the parent, as torch has it: it asks for a SIGINT then, which may not do."""
    processes._prctl(processes._PR_SET_PDEATHSIG, 0)
    signal.pause()


def leave(how: str) -> None:
    """End in one of several ways."""
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "_exit":
        os._exit(7)
    if how == "raise":
        raise ValueError("on purpose")
    sys.exit(how if how == "text" else 3)


def surroundings() -> dict[str, object]:
    """Return what a process finds when it starts."""
    process = multiprocessing.current_process()
    parent: Any = multiprocessing.parent_process()
    umask = os.umask(0)
    return {
        "variable": os.environ.get("DISTTEST_EXAMPLE"),
        "others": sorted(os.environ),
        "folder": str(Path.cwd()),
        "umask": umask,
        "parent": parent.pid,
        "parent is alive": parent.is_alive(),
        "name": process.name,
        "imported": "colorsys" in sys.modules,
        "tests": "tests.unit.test_warm_spawn" in sys.modules,
        "path": sys.path,
        "arguments": sys.argv,
        "handlers": (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT) is signal.default_int_handler),
        "blocked": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
    }


def read_all(descriptors: list[Any]) -> list[bytes]:
    """Return what is in files, by descriptors."""
    return [os.pread(descriptor.detach(), 100, 0) for descriptor in descriptors]


class Duplicate:
    """Hands a descriptor to the child."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[object, ...]:
        return (same, (multiprocessing.reduction.DupFd(self.fd),))


def same(value: object) -> object:
    """Return the argument."""
    return value


def start_grandchild() -> int:
    """Start a process that stays, and return its pid."""
    return subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]).pid


def start_grandchild_and_stay(writer: Connection) -> None:
    """Start a process in a session of its own, tell its pid, and wait to be ended."""
    program = "import os, signal; os.setsid(); print(flush=True); signal.pause()"
    grandchild = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert grandchild.stdout is not None
    grandchild.stdout.readline()
    writer.send(grandchild.pid)
    signal.pause()


def write_lines() -> None:
    """Write by Python and by descriptor."""
    sys.stdout.write("to stdout\n")
    sys.stderr.write("to stderr\n")
    os.write(1, b"to descriptor 1\n")


def has_ended(pid: int) -> bool:
    """Wait for the end of a process that may be nobody's child here."""
    try:
        psutil.Process(pid).wait(LIMIT_S)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


def test_surroundings_are_those_of_the_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment, working directory, umask, path and arguments are the parent's of this moment, handlers are new."""
    monkeypatch.setenv("DISTTEST_EXAMPLE", "Zo\udceb")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    umask = os.umask(0o027)
    try:
        seen = call(surroundings)
    finally:
        os.umask(umask)

    assert seen.pop("name").startswith("WarmProcess-")
    assert seen == {
        "variable": "Zo\udceb",
        "others": sorted(os.environ),
        "folder": str(tmp_path),
        "umask": 0o027,
        "parent": os.getpid(),
        "parent is alive": True,
        "imported": True,
        "tests": True,
        "path": sys.path,
        "arguments": sys.argv,
        "handlers": (signal.SIG_DFL, True),
        "blocked": set(),
    }


def test_test_modules_are_imported_in_each_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test module holds when it is imported again is new in each process, as with ``spawn``."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "counting_module.py").write_text("import os\ndef pid(): return PID\nPID = os.getpid()\n")
    module: Any = __import__("counting_module")

    first, second = call(module.pid), call(module.pid)

    assert len({first, second, os.getpid()}) == 3
    assert module.pid() == os.getpid()


@pytest.mark.parametrize(
    ("how", "code"), [("kill", -9), ("_exit", 7), ("exit", 3), ("text", 1), ("raise", 1)], ids=lambda value: str(value)
)
def test_exit_codes(how: str, code: int) -> None:
    """The exit code is what multiprocessing tells of a spawned process."""
    process = warm_spawn.WarmContext(["colorsys"]).Process(target=leave, args=(how,))

    process.start()
    process.join(LIMIT_S)

    assert process.exitcode == code
    assert not process.is_alive()


@pytest.mark.parametrize("method", ["terminate", "kill"])
def test_signals_reach_a_process_from_its_first_moment(method: str) -> None:
    """A process that is ended right after its start ends by that signal, and its sentinel tells."""
    process = warm_spawn.WarmContext(["colorsys"]).Process(target=stay)

    process.start()
    assert process.exitcode is None
    getattr(process, method)()

    assert wait([process.sentinel], LIMIT_S) == [process.sentinel]
    assert process.exitcode == {"terminate": -15, "kill": -9}[method]


def test_many_descriptors() -> None:
    """Tensors that are shared travel as descriptors, more than one message can carry."""
    files = [tempfile.TemporaryFile() for _ in range(100)]  # noqa: SIM115  closed below
    for number, file in enumerate(files):
        file.write(str(number).encode())
        file.flush()

    contents = call(read_all, [Duplicate(file.fileno()) for file in files])

    assert contents == [str(number).encode() for number in range(100)]
    for file in files:
        file.close()


def test_output_goes_where_the_parents_goes(capfd: pytest.CaptureFixture[str]) -> None:
    """A process writes to what the parent's descriptors are when it starts: here, to the capture of this test."""
    call(write_lines)

    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["to descriptor 1", "to stdout"]
    assert err == "to stderr\n"


def test_sigterm_ends_the_interpreter_in_order() -> None:
    """What its processes have started ends too; SIGTERM and the end of its channel may come at the same time."""
    context = warm_spawn.WarmContext(["colorsys"])
    reader, writer = context.Pipe(duplex=False)
    context.Process(target=start_grandchild_and_stay, args=(writer,)).start()
    grandchild = reader.recv()
    interpreter: Any = warm_spawn._interpreter

    interpreter._process.terminate()
    interpreter._control.end()

    assert interpreter._process.wait(LIMIT_S) == 0
    assert has_ended(grandchild)


def test_what_cannot_be_pickled_fails_before_anything_starts() -> None:
    """A lambda is an error in the parent, as with ``spawn``."""
    process = warm_spawn.WarmContext(["colorsys"]).Process(target=lambda: None)
    before = psutil.Process().children(recursive=True)

    with pytest.raises(Exception, match="pickle"):
        process.start()

    assert psutil.Process().children(recursive=True) == before


def test_what_a_process_has_started_ends_with_it() -> None:
    """A grandchild does not outlive its parent."""
    assert has_ended(call(start_grandchild))


@pytest.mark.parametrize("how", ["kill", "end"])
def test_nothing_outlives_the_owner(how: str) -> None:
    """When the process that has started all this is killed, or ends it, the interpreter and its processes are gone."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}

    owner = subprocess.run(
        [sys.executable, "-c", OWNER, how], cwd=root, env=environment, stdout=subprocess.PIPE, timeout=60, check=False
    )

    pids = [int(pid) for pid in owner.stdout.split()]
    assert owner.returncode == {"kill": -9, "end": 0}[how]
    assert len(pids) == 2
    assert all(has_ended(pid) for pid in pids)


def test_lost_interpreter_takes_its_processes_and_is_replaced() -> None:
    """When the interpreter is killed its processes are killed too; the next process gets a new one."""
    process = warm_spawn.WarmContext(["colorsys"]).Process(target=stay_without_a_parent)
    process.start()
    pid = process.pid
    assert pid is not None
    interpreter: Any = warm_spawn._interpreter

    interpreter._process.kill()
    process.join(LIMIT_S)
    interpreter._process.wait(LIMIT_S)

    assert process.exitcode == -signal.SIGKILL
    assert has_ended(pid)
    assert call(os.getpid) != os.getpid()
    assert warm_spawn._interpreter is not interpreter


def test_start_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that is stopped is an error after a while."""
    assert call(os.getpid) != os.getpid()
    interpreter: Any = warm_spawn._interpreter
    monkeypatch.setattr(warm_spawn, "_START_S", 0.2)
    interpreter._process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(WarmInterpreterLost, match=r"it has not answered for 0\.2 s"):
            warm_spawn.WarmContext(["colorsys"]).Process(target=stay).start()
    finally:
        interpreter._process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize(
    ("path", "text"), [(sys.path, "status -9"), ([], "No module named 'lightning_disttest'")], ids=["killed", "broken"]
)
def test_interpreter_that_has_ended_says_why(path: list[str], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection to one that is gone is an error with its status and last words."""
    monkeypatch.setattr(sys, "path", path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    interpreter = warm_spawn.Interpreter([])
    if path:
        interpreter._process.kill()
    interpreter._process.wait(LIMIT_S)

    with pytest.raises(WarmInterpreterLost, match=rf"(?s)it has ended \(pid \d+, .*{text}") as caught:
        interpreter.connect()

    interpreter.stop()
    assert interpreter.has_ended()
    assert "--disttest-real-spawn" in str(caught.value)
