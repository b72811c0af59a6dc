"""The lines of the table for other plugins."""

from __future__ import annotations

from tests.compatibility.lines import Line
from tests.harness import Run, lines_with

_ASYNC = """
    import asyncio
    import pytest
    import torch.distributed as dist

    @pytest.mark.asyncio
    @pytest.mark.distributed(2)
    async def test_coroutine(world):
        await asyncio.sleep(0)
        dist.barrier()

    @pytest.mark.asyncio
    @pytest.mark.distributed(2)
    async def test_coroutine_fails(world):
        await asyncio.sleep(0)
        assert world.rank == 0
"""


def _awaits_coroutines_on_ranks(run: Run) -> None:
    assert run.outcome("test_coroutine") == "passed"
    assert run.outcome("test_coroutine_fails") == "failed"
    assert lines_with(run.text("test_coroutine_fails"), "rank 1 of 2", "failed in call")


PLUGINS = (
    Line(
        name="pytest-asyncio",
        on_ranks="coroutines run on the event loop of each rank",
        check=_awaits_coroutines_on_ranks,
        arguments=("-o", "asyncio_default_fixture_loop_scope=function"),
        off=("-p", "no:asyncio"),
        files={"test_async.py": _ASYNC},
        plugins=("asyncio",),
    ),
)
