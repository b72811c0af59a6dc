"""Where the controller touches pytest's private parts: on fakes that have what each function looks at, and no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.junitxml import LogXML, xml_key

from lightning_disttest.engine import pytest_bridge

if TYPE_CHECKING:
    from tests.unit.conftest import Make

# Live output.


class FakeCapture:
    """A capture of output that notes when it is suspended."""

    def __init__(self, method: str) -> None:
        self._method = method
        self.notes: list[str] = []

    def global_and_fixture_disabled(self) -> Any:
        """Return itself: it is suspended inside of ``with``."""
        return self

    def __enter__(self) -> None:
        self.notes.append("suspended")

    def __exit__(self, *_: object) -> None:
        self.notes.append("resumed")


def config_of(capture: FakeCapture | None, **options: bool) -> Any:
    """Return a config with this capture manager, None for ``-p no:capture``."""
    manager = SimpleNamespace(get_plugin={"capturemanager": capture}.get)
    return SimpleNamespace(pluginmanager=manager, option=SimpleNamespace(**options))


@pytest.mark.parametrize(
    ("method", "setupshow", "shown"),
    [
        ("fd", False, False),
        ("sys", False, False),
        ("no", False, True),
        ("tee-sys", False, True),
        ("fd", True, True),
        ("sys", True, True),
    ],
)
def test_who_sees_output_live(capsys: pytest.CaptureFixture[str], method: str, setupshow: bool, shown: bool) -> None:
    """With ``-s``, ``--capture=tee-sys`` or ``--setup-show``, lines are written while capture is suspended."""
    capture = FakeCapture(method)
    show = pytest_bridge.live_output(config_of(capture, setupshow=setupshow))

    if show is not None:
        show("a line\n")

    assert (show is not None) == shown
    assert capsys.readouterr().out == ("a line\n" if shown else "")
    assert capture.notes == (["suspended", "resumed"] if shown else [])


def test_output_is_live_without_a_capture(capsys: pytest.CaptureFixture[str]) -> None:
    """With ``-p no:capture`` there is nothing to suspend; ``--setup-show`` may be switched off as well."""
    show = pytest_bridge.live_output(config_of(None))

    assert show is not None
    show("a line\n")
    assert capsys.readouterr().out == "a line\n"


# Benchmarks.


@pytest.mark.parametrize(
    ("session", "fixtures", "expected"),
    [
        (SimpleNamespace(disabled=False), ["world", "benchmark"], True),
        (SimpleNamespace(disabled=True), ["world", "benchmark"], False),
        (SimpleNamespace(disabled=False), ["world"], False),
        (SimpleNamespace(disabled=False), None, False),
        (None, ["benchmark"], False),
    ],
    ids=["measures", "disabled", "other fixtures", "no fixtures", "not installed"],
)
def test_who_is_benchmarked(session: object, fixtures: list[str] | None, expected: bool) -> None:
    """A test is measured if it asks for the fixture of pytest-benchmark, and that is there and on."""
    config = SimpleNamespace(**({} if session is None else {"_benchmarksession": session}))
    item: Any = SimpleNamespace(config=config, **({} if fixtures is None else {"fixturenames": fixtures}))

    assert pytest_bridge.is_benchmarked(item) == expected


# Properties of the run.


def test_suite_property_goes_into_the_junit_file() -> None:
    """With ``--junitxml`` the property is added to the whole run; without, there is no place for it."""
    junit: Any = LogXML("junit.xml", None)
    config: Any = SimpleNamespace(stash=pytest.Stash())

    pytest_bridge.add_suite_property(config, "lost", "1")
    config.stash[xml_key] = junit
    pytest_bridge.add_suite_property(config, "device", "cpu")

    assert junit.global_properties == [("device", "cpu")]


def test_suite_property_is_added_once() -> None:
    """Each world runs the fixture that records it; a plain test may have recorded it before them. Others are kept."""
    junit: Any = LogXML("junit.xml", None)
    config: Any = SimpleNamespace(stash=pytest.Stash())
    config.stash[xml_key] = junit
    junit.add_global_property("device", "cpu")
    junit.add_global_property("seed", 5)

    for name, value in [("device", "cpu"), ("seed", "5"), ("device", "cuda"), ("device", "cuda"), ("other", "cpu")]:
        pytest_bridge.add_suite_property(config, name, value)

    assert junit.global_properties == [("device", "cpu"), ("seed", "5"), ("device", "cuda"), ("other", "cpu")]


# The line that stands for a failure.


@pytest.mark.parametrize(
    ("longrepr", "line"),
    [
        ("one line", "one line"),
        ("\nfirst\nsecond\n", "first"),
        ("", ""),
        (("test_it.py", 7, "Skipped: no"), "('test_it.py', 7, 'Skipped: no')"),
    ],
)
def test_summary_line_of_a_text(make: Make, longrepr: object, line: str) -> None:
    """A failure without a traceback is summed up by its first line."""
    assert pytest_bridge.summary_line(make.report("call", "failed", longrepr)) == line


def test_summary_line_of_a_traceback(make: Make) -> None:
    """A failure with a traceback is summed up by its crash line, the first one of it."""
    assert pytest_bridge.summary_line(make.failed("call", ValueError("a\nb"))) == "ValueError: a"
