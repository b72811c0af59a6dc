"""A device runtime that test code starts before the fork: ranks are refused, and who did it is named."""

from __future__ import annotations

from tests.acceptance.conftest import RunOnce

# Stands for torch_xla with its runtime: what the plugin asks it, and that the runtime has threads.
XLA = """
    import threading

    class _XLAC:
        started = False

        @staticmethod
        def _xla_runtime_is_initialized():
            return _XLAC.started

    def device():
        _XLAC.started = True
        threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
TOUCHES = """
    import pytest
    import torch_xla

    torch_xla.device()

    @pytest.mark.distributed(2)
    def test_touches(): pass
"""
OTHER = """
    import pytest
    import torch_xla

    @pytest.mark.distributed(2)
    def test_other(): pass

    def test_plain():
        torch_xla.device()
"""


def test_a_module_that_starts_xla_is_named(run_once: RunOnce) -> None:
    """When a test module has started XLA at import, each test on ranks says so and names that module."""
    run = run_once({"torch_xla.py": XLA, "test_a_other.py": OTHER, "test_b_touches.py": TOUCHES}, "-W", "ignore")
    assert run.outcomes == {"test_plain": "passed", "test_other": "error", "test_touches": "error"}, run.output
    for name in ("test_other", "test_touches"):
        assert "it has initialised the XLA runtime" in run.text(name)
        blamed = run.text(name).partition("It happened while")[2]
        assert "test_b_touches.py" in blamed
        assert "test_a_other.py" not in blamed.partition("\n")[0]


def test_a_plain_test_may_start_xla(run_once: RunOnce) -> None:
    """A plain test that starts XLA, and runs before all others, does no harm to tests on ranks."""
    run = run_once({"torch_xla.py": XLA, "test_other.py": OTHER}, "-W", "ignore")
    assert run.outcomes == {"test_plain": "passed", "test_other": "passed"}, run.output
    assert next(iter(run.outcomes)) == "test_plain"
