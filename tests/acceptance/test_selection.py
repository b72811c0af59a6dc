"""Which tests run without a flag and under each one, on functions, classes, modules and parameters alike."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run, lines_with, run_pytest, write_tests

S, C, T, MS, MD = FLAGS = ("--standalone", "--cuda-only", "--tpu", "--multigpu-static", "--multigpu-dynamic")
TWINS = {
    S: ("PL_RUN_STANDALONE_TESTS", "disttest_standalone"),
    C: ("RUN_ONLY_CUDA_TESTS", "disttest_cuda_only"),
    T: ("PL_RUN_TPU_TESTS", "disttest_tpu"),
    MS: ("DISTTEST_MULTIGPU_STATIC", "disttest_multigpu_static"),
    MD: ("DISTTEST_MULTIGPU_DYNAMIC", "disttest_multigpu_dynamic"),
}
# No machine has a GPU or a TPU here, and no flag is inherited from the run of the suite.
QUIET = {"CUDA_VISIBLE_DEVICES": "", **{variable: "" for variable, _ in TWINS.values()}}
CONFTEST = """
    import sys
    sys.modules["torch_xla"] = None
"""
# What Lightning's RunIf gives on a machine without devices, whatever the flags: no module of Lightning is imported.
LIGHTNING = """
    import pytest

    def LightningRunIf(reason, **keys):
        return pytest.mark.skipif(condition=True, reason=f"Requires: [{reason}]", **keys)
"""
IMPORTS = "import pytest\nfrom lightning_disttest import RunIf\nfrom runif import LightningRunIf\n"
FORMS = ("function", "class", "module", "param")


@dataclass(frozen=True)
class Row:
    """One row of the table: marks, the flags that keep such a test, and why a plain run skips it, if it does."""

    marks: tuple[str, ...]
    kept_by: frozenset[str] = frozenset()
    skipped: str | None = None


def _row(*marks: str, by: Collection[str] = (), skipped: str | None = None) -> Row:
    return Row(marks, frozenset(by), skipped)


_NO_GPUS, _NO_TPU = "needs 2 GPUs, 0 found", "needs a TPU, none found"
_GPUS = 'LightningRunIf("GPUs>=2", min_cuda_gpus=True)'
_SKIP = 'pytest.mark.skip(reason="never")'
_DISTRIBUTED = "pytest.mark.distributed(2)"
ROWS = {
    "unmarked": _row(),
    "static": _row(_DISTRIBUTED, by=[MS]),
    "dynamic": _row("pytest.mark.distributed(2, static=False)", by=[MD]),
    "standalone": _row("pytest.mark.standalone", by=[S]),
    "ours_standalone": _row("RunIf(standalone=True)", by=[S], skipped="Requires: [Standalone execution]"),
    "theirs_standalone": _row(
        'LightningRunIf("Standalone execution", standalone=True)', by=[S], skipped="Requires: [Standalone execution]"
    ),
    "tpu": _row("pytest.mark.tpu", by=[T], skipped=_NO_TPU),
    "ours_tpu": _row("RunIf(tpu=True)", by=[T], skipped="Requires: [TPU]"),
    "theirs_tpu": _row('LightningRunIf("TPU", tpu=True)', by=[T], skipped="Requires: [TPU]"),
    "tpu_standalone": _row("pytest.mark.tpu", "pytest.mark.standalone", by=[T, S], skipped=_NO_TPU),
    "theirs_tpu_standalone": _row(
        'LightningRunIf("TPU + Standalone execution", tpu=True, standalone=True)',
        by=[T, S],
        skipped="Requires: [TPU + Standalone execution]",
    ),
    "multigpu_static": _row("pytest.mark.multigpu_static(2)", by=[C, MS], skipped=_NO_GPUS),
    "multigpu_dynamic": _row("pytest.mark.multigpu_dynamic(2)", by=[C, MD], skipped=_NO_GPUS),
    "cuda_static": _row('pytest.mark.distributed(2, device="cuda")', by=[C, MS], skipped=_NO_GPUS),
    "cuda_dynamic": _row('pytest.mark.distributed(2, device="cuda", static=False)', by=[C, MD], skipped=_NO_GPUS),
    "theirs_gpus": _row(_GPUS, by=[C], skipped="Requires: [GPUs>=2]"),
    "theirs_gpus_standalone": _row(
        'LightningRunIf("GPUs>=2 + Standalone execution", min_cuda_gpus=True, standalone=True)',
        by=[C, S],
        skipped="Requires: [GPUs>=2 + Standalone execution]",
    ),
    "static_with_gpus": _row(_DISTRIBUTED, _GPUS, by=[C, MS], skipped="Requires: [GPUs>=2]"),
    "static_other_condition": _row(
        _DISTRIBUTED, 'pytest.mark.skipif(True, reason="another reason")', by=[MS], skipped="another reason"
    ),
    "static_skipped": _row(_DISTRIBUTED, _SKIP, skipped="never"),
    "standalone_skipped": _row("pytest.mark.standalone", _SKIP, skipped="never"),
    "tpu_skipped": _row("pytest.mark.tpu", _SKIP, skipped="never"),
    "gpus_skipped": _row(_GPUS, _SKIP, skipped="Requires: [GPUs>=2]"),
}
THEIRS = {name: row for name, row in ROWS.items() if name.startswith(("theirs", "gpus_skipped", "unmarked"))}
# Marks of one test in several places: (id, flags that keep it).
MIXED = {"test_mixed.py::TestMixed::test_it": frozenset((C, S))}


def _id(form: str, name: str) -> str:
    """Return the node id of a row in one of its forms."""
    return {
        "function": f"test_function.py::test_{name}",
        "class": f"test_class.py::Test_{name}::test_it",
        "module": f"test_module_{name}.py::test_it",
        "param": f"test_param.py::test_it[{name}]",
    }[form]


def _files(rows: Mapping[str, Row] = ROWS, forms: Collection[str] = FORMS) -> dict[str, str]:
    """Return the test files with all rows in the given forms, and what they need."""
    files = {"conftest.py": CONFTEST, "runif.py": LIGHTNING}
    decorators = {name: "".join(f"@{mark}\n" for mark in row.marks) for name, row in rows.items()}
    if "function" in forms:
        tests = [f"{decorators[name]}def test_{name}(): pass\n" for name in rows]
        files["test_function.py"] = IMPORTS + "".join(tests)
    if "class" in forms:
        tests = [f"{decorators[name]}class Test_{name}:\n    def test_it(self): pass\n" for name in rows]
        files["test_class.py"] = IMPORTS + "".join(tests)
    if "module" in forms:
        for name, row in rows.items():
            files[f"test_module_{name}.py"] = f"{IMPORTS}pytestmark = [{', '.join(row.marks)}]\ndef test_it(): pass\n"
    if "param" in forms:
        params = [f"pytest.param(0, id={name!r}, marks=[{', '.join(row.marks)}])," for name, row in rows.items()]
        head = '@pytest.mark.parametrize("_", [\n' + "\n".join(params) + "\n])\n"
        files["test_param.py"] = f"{IMPORTS}{head}def test_it(_): pass\n"
    return files


def _table_files() -> dict[str, str]:
    mixed = f"{IMPORTS}@{_GPUS}\nclass TestMixed:\n    @pytest.mark.standalone\n    def test_it(self): pass\n"
    return _files() | {"test_mixed.py": mixed}


_KEPT_BY = {_id(form, name): row.kept_by for form in FORMS for name, row in ROWS.items()} | MIXED


def _expected(*flags: str) -> set[str]:
    """Return the ids that the flags keep together; with --standalone, --cuda-only has no say."""
    effective = set(flags) - ({C} if S in flags else set())
    return {nodeid for nodeid, kept_by in _KEPT_BY.items() if effective <= kept_by}


def _collected(run: Run) -> set[str]:
    lines = [line for line in run.output.splitlines() if re.match(r"test_\w+\.py::", line)]
    assert len(set(lines)) == len(lines), run.output
    return set(lines)


def _assert_kept(run: Run, kept: set[str], total: int) -> None:
    """The run collected these tests, and says how many others it left out."""
    assert _collected(run) == kept, run.output
    summary = f"{len(kept)}/{total} tests collected ({total - len(kept)} deselected)"
    if not kept:
        summary = f"no tests collected ({total} deselected)"
    assert summary in run.output
    assert "nothing ran" not in run.output
    assert run.returncode == (pytest.ExitCode.OK if kept else pytest.ExitCode.NO_TESTS_COLLECTED), run.output


def _collect(folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Run:
    return run_pytest(folder, "--collect-only", "-q", *arguments, env={**QUIET, **(env or {})})


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the whole table; the second run in it is quicker than the first."""
    folder = tmp_path_factory.mktemp("table")
    write_tests(folder, _table_files())
    return folder


@pytest.fixture(scope="module")
def plain(run_once: RunOnce) -> Run:
    """Return a plain run of the whole table, with bodies, on a machine that has no device."""
    gpus = "from lightning_disttest import RunIf\n@RunIf(min_cuda_gpus=2)\ndef test_ours_gpus(): pass\n"
    return run_once(_table_files() | {"test_gpus.py": gpus}, env=QUIET)


def test_a_plain_run_deselects_nothing(table: Path) -> None:
    """Without a flag every test is collected."""
    run = _collect(table)
    assert _collected(run) == set(_KEPT_BY), run.output
    assert f"{len(_KEPT_BY)} tests collected in" in run.output
    assert run.returncode == 0


@pytest.mark.parametrize("name", ROWS)
def test_what_a_plain_run_skips(plain: Run, name: str) -> None:
    """Without a flag a test runs, unless its condition is not met or its device is missing: then it says so."""
    reason = ROWS[name].skipped
    names = [_id(form, name).partition("::")[2] for form in ("function", "class", "param")]
    assert [plain.outcome(each) for each in names] == ["passed" if reason is None else "skipped"] * 3, plain.output
    if reason is not None:
        texts = [plain.text(each) for each in names]
        assert all(reason in text for text in texts), texts


def test_a_plain_run_skips_what_lacks_a_device_in_modules_too(plain: Run) -> None:
    """The marks of modules count as those of functions: as many tests are skipped, and none fails."""
    skipped = sum(row.skipped is not None for row in ROWS.values())
    passed = len(ROWS) - skipped
    # Beside the table: the test with marks in two places, and the one with RunIf(min_cuda_gpus=2).
    assert f"{passed * len(FORMS)} passed, {skipped * len(FORMS) + 2} skipped in" in plain.output
    assert plain.returncode == 0


def test_our_condition_on_gpus_in_a_plain_run(plain: Run) -> None:
    """RunIf(min_cuda_gpus=2) of ours skips like Lightning's."""
    assert plain.outcome("test_ours_gpus") == "skipped"
    assert "Requires: [GPUs>=2]" in plain.text("test_ours_gpus")


@pytest.mark.parametrize("flag", FLAGS)
def test_one_flag(table: Path, flag: str) -> None:
    """Each flag keeps its tests."""
    kept = _expected(flag)
    assert 0 < len(kept) < len(_KEPT_BY)
    _assert_kept(_collect(table, flag), kept, len(_KEPT_BY))


@pytest.mark.parametrize(("environment", "ini"), [(C, MS), (MD, C), (S, T), (T, S), (MS, MD)])
def test_twins_of_flags(table: Path, environment: str, ini: str) -> None:
    """A variable and an ini option are as good as their flags, and together they keep what both keep.

    Each twin is in one of the rows, and without either of the two another set of tests would be kept.
    """
    both = _expected(environment, ini)
    assert both not in (_expected(environment), _expected(ini))
    (table / "twin.ini").write_text(f"[pytest]\n{TWINS[ini][1]} = true\n")
    run = _collect(table, "-c", "twin.ini", env={TWINS[environment][0]: "1"})
    _assert_kept(run, both, len(_KEPT_BY))


def test_flags_from_several_sources(table: Path) -> None:
    """Flags intersect wherever each comes from; beside --standalone, --cuda-only has no say."""
    kept = _expected(S, C, T)
    assert kept == _expected(S, T)
    (table / "several.ini").write_text("[pytest]\ndisttest_tpu = 1\n")
    run = _collect(table, S, "-c", "several.ini", env={"RUN_ONLY_CUDA_TESTS": "1"})
    _assert_kept(run, kept, len(_KEPT_BY))


def test_our_condition_on_gpus_under_the_flag(tmp_path: Path) -> None:
    """RunIf(min_cuda_gpus=n) of ours is kept by --cuda-only, wherever it stands."""
    rows = {"unmarked": ROWS["unmarked"], "ours_gpus": _row("RunIf(min_cuda_gpus=2)", by=[C])}
    write_tests(tmp_path, _files(rows))
    run = _collect(tmp_path, C)
    _assert_kept(run, {_id(form, "ours_gpus") for form in FORMS}, 2 * len(FORMS))


def test_the_ini_option_meets_the_condition(run_once: RunOnce) -> None:
    """RunIf(standalone=True) runs when the flag is in the ini file: each test in a fresh process."""
    source = """
        import os
        from lightning_disttest import RunIf

        CONTROLLER = os.getpid()

        @RunIf(standalone=True)
        def test_it(): assert os.getpid() != CONTROLLER
    """
    run = run_once({"pytest.ini": "[pytest]\ndisttest_standalone = yes\n", "test_it.py": source}, env=QUIET)
    assert run.outcomes == {"test_it": "passed"}, run.output


def test_skips_under_a_flag_are_conditional_ones(run_once: RunOnce) -> None:
    """Under a flag a test with a condition that is not met is still skipped, not dropped."""
    other = _row("pytest.mark.standalone", 'pytest.mark.skipif(True, reason="another reason")')
    rows = {"other_condition": other, "standalone_skipped": ROWS["standalone_skipped"]}
    run = run_once(_files(rows, ["function"]), S, env=QUIET)
    assert run.outcomes == {"test_other_condition": "skipped"}, run.output
    assert "1 skipped, 1 deselected in" in run.output


_TPU_ROWS = {name: row for name, row in ROWS.items() if T in row.kept_by}


def test_tpu_tests_fail_without_a_tpu_under_the_flag(run_once: RunOnce) -> None:
    """With --tpu a test that needs a TPU fails if there is none."""
    run = run_once(_files(_TPU_ROWS, ["function"]), T, env=QUIET)
    assert run.outcomes == {f"test_{name}": "error" for name in _TPU_ROWS}, run.output
    for name in _TPU_ROWS:
        text = run.text(f"test_{name}")
        assert lines_with(text, f"test_function.py::test_{name} cannot run here", "TPU", "because of --tpu ("), text
    assert run.returncode == 1
    assert "nothing ran" not in run.output


# What is missing, by the name that requires it. Worlds import torch, so they are in one of the runs only.
_LACKS = {
    "cuda": {"theirs_gpus": "GPUs>=2"},
    "tpu": {"tpu": _NO_TPU, "ours_tpu": "TPU", "theirs_tpu": "TPU"},
    "standalone": {"ours_standalone": "Standalone execution", "theirs_standalone": "Standalone execution"},
}
_WORLDS = {"multigpu_static": _NO_GPUS, "cuda_dynamic": _NO_GPUS}
_OTHER_SKIPS = {
    "other_condition": _row("pytest.mark.standalone", 'pytest.mark.skipif(True, reason="another reason")'),
    "other_requirement": _row('LightningRunIf("torch>=99")'),
    "standalone_skipped": ROWS["standalone_skipped"],
    "tpu_skipped": ROWS["tpu_skipped"],
}


@pytest.mark.parametrize(
    ("names", "way"),
    [("cuda,tpu,standalone", "option"), ("cuda", "environment"), ("tpu", "ini")],
)
def test_required_devices(run_once: RunOnce, names: str, way: str) -> None:
    """A test that would be skipped for lack of what is required fails and says what is missing; no other skip does."""
    lacks = {name: text for each in names.split(",") for name, text in _LACKS[each].items()}
    lacks |= _WORLDS if names == "cuda,tpu,standalone" else {}
    others = {name for each in _LACKS.values() for name in each if name not in lacks}
    files = _files({name: ROWS[name] for name in (*lacks, *others)} | _OTHER_SKIPS, ["function"])
    files |= {"pytest.ini": f"[pytest]\ndisttest_require = {names}\n"} if way == "ini" else {}
    arguments = [f"--disttest-require={names}"] if way == "option" else []
    env = {"DISTTEST_REQUIRE": names} if way == "environment" else {}
    run = run_once(files, *arguments, env=QUIET | env)
    failed = {f"test_{name}": "error" for name in lacks}
    assert run.outcomes == failed | {f"test_{name}": "skipped" for name in (*others, *_OTHER_SKIPS)}, run.output
    for name, text in lacks.items():
        shown = run.text(f"test_{name}")
        assert lines_with(shown, f"test_{name} cannot run here", text, "because of --disttest-require ("), shown


_SKIPS = "import pytest\n@pytest.mark.standalone\ndef test_it(): pytest.skip('not today')\n"
_XFAILS = "import pytest\n@pytest.mark.standalone\n@pytest.mark.xfail\ndef test_it(): assert False\n"
_PLAIN = "def test_it(): pass\n"


@pytest.mark.parametrize(
    ("source", "flags", "arguments"),
    [(_PLAIN, [MS, MD], []), (_SKIPS, [S], []), (_PLAIN, [C, T], ["-n2"]), (_SKIPS, [S], ["-n2"])],
    ids=["none selected", "all skipped", "xdist, none selected", "xdist, all skipped"],
)
def test_nothing_ran(run_once: RunOnce, source: str, flags: list[str], arguments: list[str]) -> None:
    """A run with flags in which no selected test was executed fails, and says so once, with its flags."""
    run = run_once({"test_some.py": source}, *flags, *arguments, env=QUIET)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.output
    (line,) = lines_with(run.output, "nothing ran")
    assert " and ".join(f"{flag} ({TWINS[flag][0]}, ini {TWINS[flag][1]})" for flag in flags) in line


@pytest.mark.parametrize("arguments", [[], ["-n2"]], ids=["here", "xdist"])
def test_something_ran(run_once: RunOnce, arguments: list[str]) -> None:
    """A run that executed a selected test, though it failed as expected, is left as pytest judges it."""
    run = run_once({"test_some.py": _XFAILS}, S, *arguments, env=QUIET)
    assert run.returncode == 0, run.output
    assert "1 xfailed" in run.output
    assert "nothing ran" not in run.output


_PLACES = {
    "distributed": _DISTRIBUTED,
    "standalone": "pytest.mark.standalone",
    "tpu": "pytest.mark.tpu",
    "multigpu_static": "pytest.mark.multigpu_static(2)",
    "multigpu_dynamic": "pytest.mark.multigpu_dynamic(2)",
}
_PAIRS = {
    (one, other): _row(_PLACES[one], _PLACES[other])
    for one in _PLACES
    for other in _PLACES
    if one < other and (one, other) != ("standalone", "tpu")
}
_CONTRADICTIONS = {f"{one}_and_{other}": row for (one, other), row in _PAIRS.items()} | {
    "distributed_and_ours": _row(_DISTRIBUTED, "RunIf(standalone=True)"),
    "distributed_and_theirs": _row(_DISTRIBUTED, 'LightningRunIf("TPU", tpu=True)'),
    "multigpu_static_and_ours": _row("pytest.mark.multigpu_static(2)", "RunIf(tpu=True)"),
}
_LEGAL = {
    "tpu_with_standalone": _row("pytest.mark.tpu", "pytest.mark.standalone"),
    "tpu_with_ours": _row("pytest.mark.tpu", "RunIf(standalone=True)"),
    "ours_with_standalone": _row("RunIf(tpu=True)", "pytest.mark.standalone"),
    "distributed_with_gpus": _row(_DISTRIBUTED, _GPUS),
}


def test_marks_that_contradict(tmp_path: Path) -> None:
    """Two marks that name two places to run a test end the run before it begins, and all such tests are named."""
    write_tests(tmp_path, _files(_CONTRADICTIONS | _LEGAL) | {"test_across.py": _ACROSS})
    run = _collect(tmp_path)
    assert run.returncode == pytest.ExitCode.USAGE_ERROR, run.output
    refused = {line.strip().partition(": it is marked both")[0] for line in lines_with(run.output, "marked both")}
    wrong = {_id(form, name) for form in FORMS for name in _CONTRADICTIONS}
    assert refused == wrong | {"test_across.py::TestIt::test_it"}
    for one, other in _PAIRS:
        nodeid = _id("function", f"{one}_and_{other}")
        assert lines_with(run.output, f"{nodeid}: it is marked both {one} and {other}"), run.output


_ACROSS = f"""
    import pytest

    @{_DISTRIBUTED}
    class TestIt:
        @pytest.mark.standalone
        def test_it(self): pass
"""


def test_marks_that_go_together(tmp_path: Path) -> None:
    """A standalone TPU test is legal, and so is a condition on GPUs beside any mark."""
    write_tests(tmp_path, _files(_LEGAL))
    run = _collect(tmp_path)
    assert run.returncode == 0, run.output
    assert _collected(run) == {_id(form, name) for form in FORMS for name in _LEGAL}


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        ("distributed", ("distributed", "multigpu")),
        ("not multigpu_static", ("multigpu_static",)),
    ],
)
def test_mark_expressions(table: Path, expression: str, parts: tuple[str, ...]) -> None:
    """``-m distributed`` means the aliases too, and these keep their own names."""
    marked = {name for name, row in ROWS.items() if any(part in mark for part in parts for mark in row.marks)}
    kept = {_id(form, name) for form in FORMS for name in marked}
    if expression.startswith("not "):
        kept = _KEPT_BY.keys() - kept
    _assert_kept(_collect(table, "-m", expression), kept, len(_KEPT_BY))


_THEIRS = _files(THEIRS)
# What the conftest of Lightning's suites does: it looks at the item's own marks, and deselects without a hook.
FILTER = """
    import os
    import sys

    sys.modules["torch_xla"] = None
    SWITCHES = {
        "standalone": "PL_RUN_STANDALONE_TESTS", "min_cuda_gpus": "RUN_ONLY_CUDA_TESTS", "tpu": "PL_RUN_TPU_TESTS"
    }

    def wanted(item, keys):
        marks = item.own_markers
        if any(mark.name == "skip" for mark in marks):
            return False
        return all(any(mark.name == "skipif" and mark.kwargs.get(key) for mark in marks) for key in keys)

    def pytest_collection_modifyitems(items):
        keys = [key for key, variable in SWITCHES.items() if os.getenv(variable) == "1"]
        if "standalone" in keys and "min_cuda_gpus" in keys:
            keys.remove("min_cuda_gpus")
        if keys:
            items[:] = [item for item in items if wanted(item, keys)]
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return two folders with the same tests: with no filter in the conftest, and with Lightning's."""
    ours, theirs = (tmp_path_factory.mktemp(name) for name in ("ours", "theirs"))
    files = {name: source.replace("from lightning_disttest import RunIf\n", "") for name, source in _THEIRS.items()}
    write_tests(ours, files)
    write_tests(theirs, files | {"conftest.py": FILTER})
    return ours, theirs


@pytest.mark.parametrize("flags", [(S,), (C,), (T,), (S, C), (C, T)], ids=lambda flags: "".join(flags))
def test_lightnings_filter_keeps_the_same(folders: tuple[Path, Path], flags: tuple[str, ...]) -> None:
    """The marks of functions and parameters select as in Lightning's conftest; those of classes and modules do too."""
    env = {TWINS[flag][0]: "1" for flag in flags}
    ours = _collected(_collect(folders[0], env=env))
    theirs = _collected(_collect(folders[1], "-p", "no:lightning_disttest", env=env))
    kept = {name for name in THEIRS if _id("function", name) in theirs}
    assert {nodeid for nodeid in ours if nodeid.startswith(("test_function.py", "test_param.py"))} == theirs
    assert ours == {_id(form, name) for form in FORMS for name in kept}
    assert bool(kept) == (flags != (C, T))


def test_lightnings_filter_beside_the_plugin(folders: tuple[Path, Path]) -> None:
    """A suite that keeps its own filter has what that keeps, and the plugin counts only what itself left out."""
    run = _collect(folders[1], env={"PL_RUN_STANDALONE_TESTS": "1"})
    kept = {name for name, row in THEIRS.items() if S in row.kept_by}
    assert _collected(run) == {_id(form, name) for form in ("function", "param") for name in kept}, run.output
    assert "deselected" not in run.output
    (line,) = lines_with(run.output, "removed tests that --standalone would keep")
    assert f"would keep: {2 * len(kept)}, such as test_" in line


def test_nothing_is_said_of_what_was_deselected(folders: tuple[Path, Path]) -> None:
    """Tests that pytest or the plugin itself leaves out are counted by pytest, and nobody else has removed them."""
    run = _collect(folders[0], "-k", "function", env={"PL_RUN_STANDALONE_TESTS": "1"})
    assert "deselected" in run.output
    assert lines_with(run.output, "removed tests") == []
