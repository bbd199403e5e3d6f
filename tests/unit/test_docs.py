"""README and the pages against the code: links resolve, every command exists with its options, examples parse."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import aot
from aot.cli.app import create_app
from aot.schema.project import decode_project
from registry.__main__ import _parser as registry_parser

ROOT = Path(__file__).parents[2]
PAGES = sorted((*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
# Where a command of ours ends in a line of shell.
SHELL = {"&", "&&", "|", ">", ">>", ";", "<"}


def blocks(page: Path, *languages: str) -> Iterator[str]:
    for language, text in FENCE.findall(page.read_text()):
        if not languages or language in languages:
            yield text


def fenced_lines(page: Path) -> Iterator[list[str]]:
    """The words of every line of every fenced block that is a line of shell, without comments."""
    for text in blocks(page):
        for line in text.replace("\\\n", " ").splitlines():
            line = line.strip().removeprefix("$ ")
            if re.match(r"(aot|python3?|make|docker|kubectl) ", line):
                yield shlex.split(line, comments=True)


def spans(page: Path) -> Iterator[list[str]]:
    """The words of every inline span of code."""
    for text in re.findall(r"`([^`\n]+)`", FENCE.sub("", page.read_text())):
        yield text.split()


def after(words: list[str], *start: str) -> list[str] | None:
    """What follows `start` in `words` up to the end of that command; None where it is not there."""
    for at in range(len(words) - len(start) + 1):
        if tuple(words[at : at + len(start)]) == start:
            rest = words[at + len(start) :]
            end = next((index for index, word in enumerate(rest) if word in SHELL), len(rest))
            return rest[:end]
    return None


def cases(found: Iterator[list[str]], page: Path, *start: str) -> Iterator[Any]:
    for words in found:
        if (rest := after(words, *start)) is not None:
            yield pytest.param(rest, id=f"{page.name}: {' '.join([*start, *rest])}"[:100])


COMMANDS = [case for page in PAGES for case in cases(fenced_lines(page), page, "aot")]
NAMED = [case for page in PAGES for case in cases((w for w in spans(page) if w[0] == "aot"), page, "aot")]
SERVICE = [
    case
    for page in PAGES
    for found in (fenced_lines, spans)
    for case in cases(found(page), page, *["python", "-m", "registry"])
]
LINKS = [
    pytest.param(page, target, id=f"{page.name}: {target}")
    for page in PAGES
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text()))
]


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that `words` name, and the rest. Raises UsageError of click's for one that is not there."""
    command = get_command(create_app())
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        if words[0] not in command.commands and getattr(command, "invoke_without_command", False):
            break
        assert words[0] in command.commands, f"no command {words[0]!r} among {', '.join(command.commands)}"
        command, words = command.commands[words[0]], words[1:]
    return command, words


def test_the_pages_show_commands_of_every_kind() -> None:
    assert min(len(COMMANDS), len(NAMED), len(SERVICE), len(LINKS)) >= 5


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_that_is_shown_parses(words: list[str]) -> None:
    command, rest = command_of(words)
    if command.name == "admin":
        registry_parser().parse_args(rest)
    command.make_context("aot", rest)  # raises for an unknown option, a missing argument or a wrong value


@pytest.mark.parametrize("words", NAMED)
def test_every_command_that_is_named_exists_with_its_options(words: list[str]) -> None:
    command, rest = command_of(words)
    if command.name == "admin":  # what follows is another command's
        registry_parser().parse_args(rest) if rest else None
        return
    options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    assert {word for word in rest if re.match(r"--?[a-zA-Z]", word)} <= options


@pytest.mark.parametrize("words", SERVICE)
def test_every_command_of_the_service_parses(words: list[str]) -> None:
    if words:
        registry_parser().parse_args(words)


def test_housekeeping_commands_have_the_options_of_their_table() -> None:
    [section] = re.findall(r"## Keeping house\n(.*?)(?=\n## |\Z)", (ROOT / "docs/deploy.md").read_text(), re.S)
    rows = re.findall(r"^\| `(\w+)([^`]*)` \|", section, re.M)
    assert len(rows) >= 4
    for name, options in rows:
        flags = re.findall(r"\[(--[\w-]+)(?: ([A-Z]+))?\]", options)
        words = [word for pair in flags for word in pair if word]
        registry_parser().parse_args([name, *words])


def test_modules_and_targets_that_are_run_exist() -> None:
    text = "".join(page.read_text() for page in PAGES)
    modules = set(re.findall(r"python -m ((?:benchmarks|tests)[\w.]*)", text))
    assert len(modules) >= 4
    assert [name for name in modules if not (ROOT / f"{name.replace('.', '/')}.py").exists()] == []
    targets = set(re.findall(r"(?:^|`)make ([a-z]+)", text, re.M))
    assert targets >= {"demo", "test"}
    assert targets <= set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))


def test_every_page_is_linked_from_the_readme() -> None:
    linked = set(re.findall(r"\]\(([^)#\s]+)", (ROOT / "README.md").read_text()))
    pages = {page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").glob("*.md")} | {"SECURITY.md"}
    assert pages <= linked


@pytest.mark.parametrize(("page", "target"), LINKS)
def test_every_link_resolves(page: Path, target: str) -> None:
    if target.startswith(("http://", "https://", "mailto:")):
        return  # a test has no network
    path, _, anchor = target.partition("#")
    found = page.parent / path if path else page
    assert found.exists()
    if anchor:
        titles = re.findall(r"^#+ (.*)$", FENCE.sub("", found.read_text()), re.M)
        assert anchor in {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}


def test_examples_in_python_use_names_that_exist() -> None:
    texts = [text for page in PAGES for text in blocks(page, "python")]
    assert texts
    for text in texts:
        used = {
            node.attr
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "aot"
        }
        assert used <= set(aot.__all__)


def test_project_files_that_are_shown_decode() -> None:
    texts = [text for page in PAGES for text in blocks(page, "toml") if "[[models]]" in text]
    assert texts
    for text in texts:
        assert decode_project(text).models
