"""``ddp_spawn`` that starts warm does what a real one does: where it does so, and what it takes over."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run

# What the launched ranks run, where spawned ones can import it.
LAUNCHED = """
    import json, os, pathlib
    import psutil
    import torch

    AT_IMPORT = os.environ.get("EXAMPLE_AT_IMPORT")

    def look(rank, folder):
        seen = {
            "warm": any("warm_interpreter" in word for word in psutil.Process().parent().cmdline()),
            "at import": AT_IMPORT,
            "folder": os.getcwd(),
            "threads": torch.get_num_threads(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "number": torch.rand(1).item(),
        }
        pathlib.Path(folder, f"seen-{rank}.json").write_text(json.dumps(seen))
        print(f"said by rank {rank}")
        return rank
"""
TESTS = """
    import json
    import pytest
    import torch
    from lightning.fabric import Fabric
    from lightning.pytorch import Trainer, seed_everything
    from lightning.pytorch.demos.boring_classes import BoringModel
    import launched

    ways = pytest.mark.parametrize("way", [pytest.param("standalone", marks=pytest.mark.standalone), "plain"])

    def launch(function, *arguments):
        return Fabric(accelerator="cpu", devices=2, strategy="ddp_spawn").launch(function, *arguments)

    def look(fabric, folder):
        return launched.look(fabric.global_rank, folder)

    @ways
    def test_surroundings(way, tmp_path, monkeypatch, pytestconfig, capfd):
        monkeypatch.setenv("EXAMPLE_AT_IMPORT", "set by the test")
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        monkeypatch.chdir(tmp_path)
        torch.use_deterministic_algorithms(True)
        try:
            seed_everything(7)
            expected = torch.rand(1).item()
            seed_everything(7)
            assert launch(look, str(tmp_path)) == 0
        finally:
            torch.use_deterministic_algorithms(False)
        seen = [json.loads((tmp_path / f"seen-{rank}.json").read_text()) for rank in range(2)]
        (pytestconfig.rootpath / f"warm-{way}.json").write_text(json.dumps([one.pop("warm") for one in seen]))
        assert seen == 2 * [{
            "at import": "set by the test",
            "folder": str(tmp_path),
            "threads": 1,
            "deterministic": True,
            "number": expected,
        }]
        assert sorted(line for line in capfd.readouterr().out.splitlines() if line.startswith("said")) == [
            "said by rank 0", "said by rank 1"
        ]

    @ways
    def test_unpicklable(way):
        model = BoringModel()
        model.layer.not_picklable = lambda: None
        trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp_spawn", fast_dev_run=True, barebones=False)
        with pytest.raises((AttributeError, Exception), match="[Cc]an't (get|pickle) local object"):
            trainer.fit(model)

    @ways
    def test_loss(way, tmp_path, pytestconfig):
        seed_everything(1)
        trainer = Trainer(
            accelerator="cpu", devices=2, strategy="ddp_spawn", max_epochs=1, limit_train_batches=4, logger=False,
            limit_val_batches=0, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
            default_root_dir=tmp_path,
        )
        model = BoringModel()
        trainer.fit(model)
        (pytestconfig.rootpath / f"weights-{way}.json").write_text(json.dumps(model.layer.weight.tolist()))
"""
# One that is wrong about the ranks it has, as in Lightning's own tests.
WRONG = """
    import pytest
    from lightning.fabric.plugins.environments import LightningEnvironment
    from lightning.pytorch import Trainer
    from lightning.pytorch.demos.boring_classes import BoringModel

    class Wrong(LightningEnvironment):
        creates_processes_externally = False

        def local_rank(self):
            return 1

    def test_wrong():
        trainer = Trainer(strategy="ddp", accelerator="cpu", devices=2, plugins=[Wrong()], barebones=True)
        with pytest.raises(RuntimeError, match="attempted to launch new distributed processes with `local_rank > 0`"):
            trainer.fit(BoringModel())
"""
NAMES = [f"test_{name}[{way}]" for name in ("surroundings", "unpicklable", "loss") for way in ("standalone", "plain")]


@pytest.fixture(
    scope="module",
    params=["", "--disttest-real-spawn", "--disttest-warm-spawn-everywhere"],
    ids=["default", "real", "everywhere"],
)
def run(run_once: RunOnce, request: pytest.FixtureRequest) -> Run:
    """Return a run of the same tests with one of the switches."""
    files = {"launched.py": LAUNCHED, "test_spawn.py": TESTS, "test_wrong.py": WRONG}
    return run_once(files, *filter(None, [request.param]))


def test_all_of_it(run: Run, request: pytest.FixtureRequest) -> None:
    """The same holds whatever starts the processes; and where they start warm is what the switches say."""
    switch = request.node.callspec.id
    for name in (*NAMES, "test_wrong"):
        assert run.outcome(name) == "passed", run.text(name)
    started = {way: (run.folder / f"warm-{way}.json").read_text() for way in ("standalone", "plain")}
    warm, real = "[true, true]", "[false, false]"
    assert (
        started
        == {
            "default": {"standalone": warm, "plain": real},
            "real": {"standalone": real, "plain": real},
            "everywhere": {"standalone": warm, "plain": warm},
        }[switch]
    )


def test_training_is_the_same(run: Run) -> None:
    """Warm or not, the weights are the same to the last digit."""
    weights = {(run.folder / f"weights-{way}.json").read_text() for way in ("standalone", "plain")}
    assert len(weights) == 1
