"""The options: where a value comes from, what is legal, and what the help says."""

from __future__ import annotations

import argparse
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from lightning_disttest.errors import InvalidSetting
from lightning_disttest.settings import OPTIONS, Settings, find_option, resolve

if TYPE_CHECKING:
    from lightning_disttest.settings import Option

DEFAULTS = Settings(
    standalone=False,
    cuda_only=False,
    tpu=False,
    multigpu_static=False,
    multigpu_dynamic=False,
    require=frozenset(),
    timeout=300.0,
    grace=0.5,
    progress=30.0,
    rank_output="failed",
    strict_leaks=False,
    world_memory=1024.0,
    real_spawn=False,
    warm_spawn_everywhere=False,
    given=frozenset(),
)
FIELDS = {
    "--standalone": "standalone",
    "--cuda-only": "cuda_only",
    "--tpu": "tpu",
    "--multigpu-static": "multigpu_static",
    "--multigpu-dynamic": "multigpu_dynamic",
    "--disttest-require": "require",
    "--disttest-timeout": "timeout",
    "--disttest-grace": "grace",
    "--disttest-progress": "progress",
    "--disttest-rank-output": "rank_output",
    "--disttest-strict-leaks": "strict_leaks",
    "--disttest-world-memory": "world_memory",
    "--disttest-real-spawn": "real_spawn",
    "--disttest-warm-spawn-everywhere": "warm_spawn_everywhere",
}
# For each kind of option: three different values as text, and what each is taken for.
VALUES: dict[str, tuple[tuple[str, object], ...]] = {
    "switch": (("1", True), ("off", False), ("yes", True)),
    "seconds": (("7", 7.0), ("8.5", 8.5), ("0", 0.0)),
    "mebibytes": (("512", 512.0), ("0", 0.0), ("0.5", 0.5)),
    "choice": (("first", "first"), ("all", "all"), ("failed", "failed")),
    "names": (
        ("cuda", frozenset({"cuda"})),
        ("tpu,standalone", frozenset({"tpu", "standalone"})),
        ("cuda,tpu", frozenset({"cuda", "tpu"})),
    ),
}
ILLEGAL = {"switch": "perhaps", "seconds": "soon", "mebibytes": "1 GiB", "choice": "none", "names": "cuda,rocm"}
LEGAL = {
    "switch": "1 or 0, true or false, yes or no, on or off",
    "seconds": "a number of seconds, 0 or more",
    "mebibytes": "a number of mebibytes, 0 or more",
    "choice": "one of first, failed, all",
    "names": "cuda, tpu, standalone, or several of them with commas",
}
SOURCES = ("option", "environment", "ini")

every_option = pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.flag)


class FakeConfig:
    """What ``resolve`` reads of a config: options that were given, and lines of the ini file."""

    def __init__(self, options: dict[str, object], ini: dict[str, str]) -> None:
        self.option = argparse.Namespace(**options)
        self._ini = ini

    def getini(self, name: str) -> str:
        """Return a line of the ini file, empty if it is not there."""
        return self._ini.get(name, "")


def resolve_all(option: Option, given: dict[str, str]) -> Settings:
    """Return all settings where the named sources give one option."""
    flag: dict[str, object] = {}
    if "option" in given:
        flag[option.dest] = True if option.kind == "switch" else given["option"]
    environ = {option.environment: given["environment"]} if "environment" in given else {}
    ini = {option.ini: given["ini"]} if "ini" in given else {}
    config: Any = FakeConfig(flag, ini)
    return resolve(config, environ)


def resolve_from(option: Option, given: dict[str, str]) -> Any:
    """Return the value of one option that the named sources give."""
    return getattr(resolve_all(option, given), FIELDS[option.flag])


def test_every_option_is_tested_here() -> None:
    """The table of this test names every option, and every option has a field of its own."""
    assert set(FIELDS) == {option.flag for option in OPTIONS}
    assert {option.flag: option.field for option in OPTIONS} == FIELDS
    assert {*FIELDS.values(), "given"} == set(Settings.__dataclass_fields__)


def test_defaults() -> None:
    """Without any source, the documented defaults hold."""
    config: Any = FakeConfig({}, {})

    assert resolve(config, {}) == DEFAULTS


@every_option
@pytest.mark.parametrize("source", SOURCES)
def test_settings_know_what_was_given(option: Option, source: str) -> None:
    """Each source counts as somebody's will, also if it says what holds anyway; other options stay as they were."""
    same = {"switch": "0", "names": ","}.get(option.kind, str(option.default))

    settings = resolve_all(option, {source: same})

    assert settings.given == {FIELDS[option.flag]}


@every_option
def test_option_is_found_by_its_field(option: Option) -> None:
    """Who has the name of a setting can say how it was set."""
    assert find_option(FIELDS[option.flag]) is option


@every_option
@pytest.mark.parametrize(
    "present", [sources for n in (1, 2, 3) for sources in itertools.combinations(SOURCES, n)], ids="+".join
)
def test_precedence(option: Option, present: tuple[str, ...]) -> None:
    """The option goes before the environment, that before the ini file, and that before the default."""
    values = dict(zip(SOURCES, VALUES[option.kind], strict=True))

    resolved = resolve_from(option, {source: values[source][0] for source in present})

    assert values[present[0]][1] == resolved


@every_option
def test_given_namespace_stands_for_the_command_line(option: Option) -> None:
    """Before pytest has filled the config, the command line is read from a namespace, and from there alone."""
    values = VALUES[option.kind]
    given, other = [value if option.kind != "switch" else value == "1" for value, _ in values[:2]]
    config: Any = FakeConfig({option.dest: other}, {})

    settings = resolve(config, {}, argparse.Namespace(**{option.dest: given}))
    default = resolve(config, {}, argparse.Namespace())

    assert values[0][1] == getattr(settings, FIELDS[option.flag])
    assert default == DEFAULTS


@every_option
@pytest.mark.parametrize("source", ["environment", "ini"])
def test_empty_value_counts_as_not_given(option: Option, source: str) -> None:
    """An empty variable or ini line is no value: the default holds."""
    settings = resolve_all(option, {source: ""})

    assert settings == DEFAULTS
    assert settings.given == set()


@pytest.mark.parametrize(
    ("option", "source"),
    [
        pytest.param(option, source, id=f"{option.flag}-{source}")
        for option, source in itertools.product(OPTIONS, SOURCES)
        if (option.kind, source) != ("switch", "option")  # a switch takes no value on the command line
    ],
)
def test_illegal_value_names_its_source(option: Option, source: str) -> None:
    """A value that is not legal is refused with the place it came from, the value, and what is legal."""
    illegal = ILLEGAL[option.kind]
    places = {
        "option": f"the option {option.flag}",
        "environment": f"the environment variable {option.environment}",
        "ini": f"the ini option {option.ini}",
    }

    with pytest.raises(InvalidSetting) as caught:
        resolve_from(option, {source: illegal})

    assert (
        f"lightning_disttest: {places[source]} gives {option.ini} the value {illegal!r}; legal is {LEGAL[option.kind]}"
    ) == str(caught.value)


@pytest.mark.parametrize("value", ["-1", "-0.001", "nan", "inf", "-inf", "", " ", "1s", "1,5"])
def test_only_a_finite_number_of_seconds_is_legal(value: str) -> None:
    """Negative, infinite and missing numbers of seconds are refused, as is other text."""
    option = next(option for option in OPTIONS if option.flag == "--disttest-timeout")

    with pytest.raises(InvalidSetting, match="a number of seconds, 0 or more"):
        resolve_from(option, {"option": value})


REQUIRE = find_option("require")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("cuda", {"cuda"}),
        (" cuda , tpu ", {"cuda", "tpu"}),
        ("tpu,cuda,standalone", {"cuda", "tpu", "standalone"}),
        ("cuda,cuda", {"cuda"}),
        ("cuda,", {"cuda"}),
        (",", set()),
    ],
)
@pytest.mark.parametrize("source", SOURCES)
def test_names_are_separated_by_commas(source: str, text: str, names: set[str]) -> None:
    """Order, spaces, repetitions and a comma too many do not matter."""
    assert resolve_from(REQUIRE, {source: text}) == names


def test_nothing_may_be_required_on_the_command_line() -> None:
    """``--disttest-require=`` takes back what the environment asks for."""
    settings = resolve_all(REQUIRE, {"option": "", "environment": "cuda"})

    assert settings.require == set()
    assert settings.given == {"require"}


@pytest.mark.parametrize("text", ["gpu", "CUDA", "cuda tpu", "cuda;tpu", "1", "cuda,,cpu"])
def test_only_known_names_are_legal(text: str) -> None:
    """A name that nobody looks for would be required in vain."""
    with pytest.raises(InvalidSetting, match="legal is cuda, tpu, standalone, or several of them with commas"):
        resolve_from(REQUIRE, {"option": text})


@pytest.mark.parametrize("text", ["1", "true", "TRUE", "yes", "on"])
def test_what_turns_a_switch_on(text: str) -> None:
    """The usual words for yes turn a switch on, in any case."""
    assert resolve_from(OPTIONS[0], {"environment": text}) is True


@pytest.mark.parametrize("text", ["0", "false", "False", "no", "off"])
def test_what_turns_a_switch_off(text: str) -> None:
    """The usual words for no turn a switch off, even if the ini file turns it on."""
    assert resolve_from(OPTIONS[0], {"environment": text, "ini": "1"}) is False


def test_resolve_reads_the_environment_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without another mapping, the variables of this process count."""
    for option in OPTIONS:
        monkeypatch.delenv(option.environment, raising=False)
    monkeypatch.setenv("DISTTEST_TIMEOUT", "12")
    config: Any = FakeConfig({}, {})

    assert resolve(config).timeout == 12.0


def test_names_are_made_of_one_another() -> None:
    """Flag, attribute and ini name of an option differ in form only."""
    for option in OPTIONS:
        stem = option.flag.removeprefix("--disttest-").removeprefix("--").replace("-", "_")
        assert option.field == stem
        assert option.dest == f"disttest_{stem}"
        assert option.ini == f"disttest_{stem}"


def test_help_names_every_option(pytester: pytest.Pytester) -> None:
    """``pytest --help`` shows each flag, its variable, its ini name, its default and its choices."""
    shown = " ".join(pytester.runpytest_subprocess("--help").stdout.str().split())

    for option in OPTIONS:
        assert f"{option.flag}{f'={option.metavar}' if option.metavar else ''}" in shown
        assert f"Also {option.environment} and the ini option {option.ini}." in shown
        assert f"{option.ini} (string): {option.help}" in shown
    assert "Default: 300." in shown
    assert "Default: 0.5." in shown
    assert "Default: failed. One of: first, failed, all." in shown
    assert "Default: none." in shown


@pytest.mark.parametrize("source", SOURCES)
def test_illegal_value_ends_the_run_as_a_usage_error(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """A run with an illegal value ends with exit code 4 and one line, without a traceback."""
    arguments = ["--disttest-grace=soon"] if source == "option" else []
    if source == "environment":
        monkeypatch.setenv("DISTTEST_GRACE", "soon")
    if source == "ini":
        pytester.makeini("[pytest]\ndisttest_grace = soon")

    result = pytester.runpytest_subprocess("--co", *arguments)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: lightning_disttest: the * gives disttest_grace the value 'soon'; legal is *"])
    result.stderr.no_fnmatch_line("Traceback*")


SWITCHES = {  # Lightning's own, which its RunIf and copies of its conftest read: the option and the ini line
    "PL_RUN_STANDALONE_TESTS": ("--standalone", "disttest_standalone"),
    "RUN_ONLY_CUDA_TESTS": ("--cuda-only", "disttest_cuda_only"),
    "PL_RUN_TPU_TESTS": ("--tpu", "disttest_tpu"),
}
SAYS_VARIABLES = f"""
import os

print("variables:", *sorted(name for name in {sorted(SWITCHES)} if os.environ.get(name) == "1"), "end")

def test_it(): pass
"""


@pytest.mark.parametrize(
    ("source", "variable"),
    [
        *(("option", variable) for variable in SWITCHES),
        ("environment", "PL_RUN_TPU_TESTS"),
        ("ini", "RUN_ONLY_CUDA_TESTS"),
        ("words", "PL_RUN_STANDALONE_TESTS"),
    ],
)
def test_lightning_is_told_what_is_selected(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, source: str, variable: str
) -> None:
    """Wherever a switch was set, Lightning finds its own variable at 1 while tests are collected, and no other."""
    flag, ini = SWITCHES[variable]
    for name in SWITCHES:
        monkeypatch.delenv(name, raising=False)
    if source in ("environment", "words"):
        monkeypatch.setenv(variable, "1" if source == "environment" else "yes")
    if source == "ini":
        pytester.makeini(f"[pytest]\n{ini} = 1")
    pytester.makepyfile(SAYS_VARIABLES)

    result = pytester.runpytest_subprocess("--collect-only", "-s", *([flag] if source == "option" else []))

    result.stdout.fnmatch_lines([f"*variables: {variable} end"])


def test_lightning_is_told_nothing_of_other_switches(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our own switches set none of Lightning's variables."""
    for name in SWITCHES:
        monkeypatch.delenv(name, raising=False)
    pytester.makepyfile(SAYS_VARIABLES)

    result = pytester.runpytest_subprocess("--collect-only", "-s", "--multigpu-static", "--multigpu-dynamic")

    result.stdout.fnmatch_lines(["*variables: end"])


@pytest.mark.parametrize("before", [None, "0"])
def test_variables_are_as_they_were_after_the_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    """A process that runs pytest and goes on has the environment that it had."""
    for name in SWITCHES:
        monkeypatch.delenv(name, raising=False)
        if before is not None:
            monkeypatch.setenv(name, before)
    runs_twice = f"""
        import os
        import pytest

        pytest.main(["--collect-only", "-s", *{[flag for flag, _ in SWITCHES.values()]}])
        print("after:", *[os.environ.get(name) for name in {list(SWITCHES)}], "end")
    """
    pytester.makepyfile(test_it=SAYS_VARIABLES, run=runs_twice)

    result = pytester.runpython(pytester.path / "run.py")

    result.stdout.fnmatch_lines(
        [f"*variables: {' '.join(sorted(SWITCHES))} end", f"after: {' '.join([str(before)] * 3)} end"]
    )
