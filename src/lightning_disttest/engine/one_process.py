"""The run of a test on one process, for ``world.record(..., one_process=True)``; part of the controller.

It follows the run on the ranks, if that has passed, in a new world of one rank. Only what it records counts: its
output, warnings and properties are those of the ranks again, and are told of only if it fails.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_disttest.engine import pytest_bridge
from lightning_disttest.engine.testrun import TestRun
from lightning_disttest.reporting.comparison import compare_with_one_process
from lightning_disttest.reporting.merge import describe_one_process
from lightning_disttest.reporting.verdict import PhaseVerdict, judge

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from lightning_disttest.engine.journal import Journal
    from lightning_disttest.engine.messages import RunItem
    from lightning_disttest.engine.supervisor import Supervisor
    from lightning_disttest.engine.worlds import WorldPool, WorldSpec
    from lightning_disttest.reporting.merge import Frame
    from lightning_disttest.reporting.stories import RankStory
    from lightning_disttest.settings import Settings


def is_wanted(stories: Sequence[RankStory]) -> bool:
    """Tell whether a rank has asked for the run; a world of one rank is one process itself."""
    return len(stories) > 1 and any(of.one_process for story in stories for of in story.records.values())


class OneProcess:
    """Runs tests on one process."""

    def __init__(self, supervisor: Supervisor, pool: WorldPool, settings: Settings, journal: Journal) -> None:
        self._supervisor = supervisor
        self._pool = pool
        self._settings = settings
        self._journal = journal

    def run(
        self, item: pytest.Item, spec: WorldSpec, message: RunItem, stories: Sequence[RankStory], frame: Frame
    ) -> tuple[PhaseVerdict, float]:
        """Run an item that has passed on the world of ``spec``; return the verdict of its call and the seconds.

        The time limit is that of the run on ranks, again.

        Raises:
            ZygoteLost, RankNotStarted: if there can be no process.
        """
        world = self._pool.take(dataclasses.replace(spec, kind="dynamic", world_size=1))
        self._journal.begin(item.nodeid, frame.command, world.ranks)
        # The ranks' files must not be found.
        tmp_path = Path(f"{message.tmp_path}-one-process")
        deadline = time.monotonic() + frame.timeout if frame.timeout else None
        alone = dataclasses.replace(message, next_index=None, tmp_path=str(tmp_path), deadline=deadline)
        try:
            record = TestRun(self._supervisor, self._pool, world, alone, self._settings, item).run()
        except BaseException:
            self._pool.interrupt(world)
            raise
        self._pool.end(world)
        verdict = judge_one_process(stories, record.stories, frame)
        pytest_bridge.retain_tmp_path(item.config, tmp_path, verdict.outcome == "passed")
        return verdict, record.seconds


def judge_one_process(stories: Sequence[RankStory], alone: Sequence[RankStory], frame: Frame) -> PhaseVerdict:
    """Return the verdict of the call of a test that has passed on its ranks, and ran on one process since."""
    verdicts = judge(alone)
    if any(verdict.outcome != "passed" for verdict in verdicts.values()):
        return PhaseVerdict("failed", disagreement=describe_one_process(verdicts, alone, frame))
    table = compare_with_one_process(stories, alone[0].records)
    return PhaseVerdict("failed" if table else "passed", disagreement=table)
