"""Reads the pages of the documentation, runs their commands and compares what comes out with what they say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

from tests.harness import STAMP, clean_environment, plugins_off, wait_until_gone

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = (README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/**/*.md")))

_LIMIT_S = 100
_WIDTH = "100"
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"# ([\w./-]+\.\w+)\n")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

# What differs between two machines or two runs, and what stands for it.
_VARIABLE = (
    (re.compile(r"\(pid [\d, ]+\)"), "(pid N)"),
    (re.compile(r"0x[0-9a-f]+"), "0xN"),
    (re.compile(r", \d+ warnings?"), ""),
    (re.compile(r"\bin \d+\.\d+s\b.*"), "in Ns"),
    (re.compile(r'File ".*?/site-packages/'), 'File ".../'),
    (re.compile(r'(File "\.\.\./.*", line) \d+'), r"\1 N"),
    (re.compile(r"([=_-])\1{4,}"), r"\1\1\1"),
    (re.compile(r"\s+"), " "),
)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language and its text."""

    language: str
    text: str

    @property
    def file_name(self) -> str | None:
        """Name of the file that the block is, if its first line says so."""
        match = _FILE_NAME.match(self.text)
        return match and match[1]

    @property
    def command(self) -> str:
        """The command of a console block."""
        return self.text.partition("\n")[0].removeprefix("$ ")

    @property
    def output(self) -> list[str]:
        """The lines that a console block shows after its command."""
        return self.text.splitlines()[1:]


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    return [Block(language, text) for language, text in _FENCED.findall(page.read_text())]


def links_of(page: Path) -> list[str]:
    """Return the targets of all links of a page."""
    return _LINK.findall(_FENCED.sub("", page.read_text()))


def first_cells(text: str, heading: str) -> list[str]:
    """Return the names in backquotes in the first column of the first table after a heading."""
    rows = [line for line in text.partition(f"\n{heading}\n")[2].partition("\n#")[0].splitlines() if line[:1] == "|"]
    return [name for row in rows[2:] for name in re.findall(r"`(\w+)", row.split("|")[1])]


def follow(page: Path, folder: Path) -> int:
    """Write the files of a page and run its commands in order; return how many commands there were.

    A command that is shown again is not run again: its block shows another part of the same output.
    """
    outputs: dict[str, str] = {}
    for block in blocks_of(page):
        if block.language == "python" and block.file_name is not None:
            (folder / block.file_name).write_text(block.text)
        elif block.language == "console":
            if block.command not in outputs:
                outputs[block.command] = run_command(block.command, folder)
            compare(block.output, outputs[block.command], folder)
    return len(outputs)


def run_command(command: str, folder: Path) -> str:
    """Run a command of a page in a folder and return what it printed; nothing may be left of it."""
    words = shlex.split(command)
    stamp = uuid.uuid4().hex
    environment = clean_environment() | {"COLUMNS": _WIDTH, STAMP: stamp, "PYTEST_ADDOPTS": shlex.join(plugins_off())}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    program = [] if words[0] == "python" else ["-m", words[0]]
    run = subprocess.run(
        [sys.executable, *program, *words[1:]],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert wait_until_gone(stamp) == []
    return run.stdout


def compare(shown: list[str], printed: str, folder: Path) -> None:
    """Check that the shown lines were printed in this order; a line ``...`` stands for any lines."""
    actual = _plain(printed.splitlines(), folder)
    position = 0
    for chunk in _chunks(shown):
        wanted = _plain(chunk, folder)
        found = _find(wanted, actual, position)
        assert found is not None, "not printed:\n" + "\n".join(chunk) + "\n\nprinted:\n" + printed
        position = found + len(wanted)


def _chunks(lines: list[str]) -> list[list[str]]:
    chunks: list[list[str]] = [[]]
    for line in lines:
        if line == "...":
            chunks.append([])
        else:
            chunks[-1].append(line)
    return [chunk for chunk in chunks if chunk]


def _plain(lines: list[str], folder: Path) -> list[str]:
    plain = []
    for line in lines:
        text = line.replace(f"{folder}{os.sep}", "")
        for pattern, substitute in _VARIABLE:
            text = pattern.sub(substitute, text)
        if text.strip():
            plain.append(text.strip())
    return plain


def _find(wanted: list[str], actual: list[str], start: int) -> int | None:
    """Return where ``wanted`` begins in ``actual``; a line is found if it is part of the actual one."""
    for begin in range(start, len(actual) - len(wanted) + 1):
        if all(want in line for want, line in zip(wanted, actual[begin:], strict=False)):
            return begin
    return None
