"""One run of pytest serves all tests of a module: a run imports torch, which takes longer than its tests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest

from tests.harness import Run, run_pytest, write_tests

RunOnce = Callable[..., Run]


@pytest.fixture(scope="module")
def run_once(tmp_path_factory: pytest.TempPathFactory) -> RunOnce:
    """Return a function that writes test files to a new folder and runs pytest there.

    Its ``plugins`` are those of ``run_pytest``.
    """

    def run(
        files: Mapping[str, str],
        *arguments: str,
        env: Mapping[str, str] | None = None,
        plugins: Collection[str] = (),
    ) -> Run:
        folder: Path = tmp_path_factory.mktemp("run")
        write_tests(folder, files)
        return run_pytest(folder, *arguments, env=env, plugins=plugins)

    return run
