"""`.aotignore` speaks gitignore: a table of its rules, and git itself as the judge of random ones."""

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aot.source import pack_tree
from aot.source.ignore import Ignore


@pytest.mark.parametrize(
    ("pattern", "left_out", "kept"),
    [
        ("*.log", ["a.log", "d/a.log", "d/e/.log"], ["a.logs", "log"]),
        ("notes", ["notes", "d/notes"], ["notes.txt", "mynotes"]),
        ("/notes", ["notes"], ["d/notes"]),
        ("d/notes", ["d/notes"], ["e/d/notes"]),
        ("d/*", ["d/a", "d/b.py"], ["d/e/a", "a"]),
        ("**/d/a", ["d/a", "x/d/a", "x/y/d/a"], ["d/b/a"]),
        ("d/**", ["d/a", "d/e/a"], ["d", "e/d"]),
        ("d/**/a", ["d/a", "d/e/a", "d/e/f/a"], ["d/ea", "a"]),
        ("a?c", ["abc", "d/a-c"], ["ac", "abbc"]),
        ("[a-c]x", ["ax", "cx"], ["dx", "x"]),
        ("[!a-c]x", ["dx"], ["ax"]),
        ("[^a]x", ["bx"], ["ax"]),
        ("[]]x", ["]x"], ["x"]),
        ("[[:digit:]]x", ["1x"], ["ax"]),
        ("[a", [], ["[a", "a"]),
        ("\\#a", ["#a"], ["a"]),
        ("#a", [], ["#a", "a"]),
        ("\\!a", ["!a"], ["a"]),
        ("a\\*", ["a*"], ["ab"]),
        ("a\\", [], ["a", "a\\"]),
        ("a  ", ["a"], ["a "]),
        ("a\\ ", ["a "], ["a"]),
        ("a**b", ["ab", "axxb"], ["a/b"]),
        ("", [], ["a"]),
        ("/", [], ["a"]),
        ("*", ["a", "d/a"], []),
        ("A", ["A"], ["a"]),
        ("a.py", ["a.py"], ["axpy"]),
    ],
)
def test_the_language(pattern, left_out, kept):
    ignore = Ignore.parse(pattern)
    for path in left_out:
        assert ignore.leaves_out(path, directory=False), path
    for path in kept:
        assert not ignore.leaves_out(path, directory=False), path


def test_a_slash_at_the_end_means_directories_only():
    ignore = Ignore.parse("build/\n")
    assert ignore.leaves_out("build", directory=True) and ignore.leaves_out("d/build", directory=True)
    assert not ignore.leaves_out("build", directory=False)


def test_the_last_pattern_that_matches_decides():
    ignore = Ignore.parse("*.txt\n!keep.txt\n/d/keep.txt\n")
    found = {path: ignore.leaves_out(path, directory=False) for path in ("a.txt", "keep.txt", "d/keep.txt", "a.py")}
    assert found == {"a.txt": True, "keep.txt": False, "d/keep.txt": True, "a.py": False}


def test_what_is_always_left_out_cannot_be_taken_back():
    ignore = Ignore.parse("!.git\n!__pycache__\n!*.pyc\n")
    assert ignore.leaves_out(".git", directory=True)
    assert ignore.leaves_out("d/__pycache__", directory=True)
    assert ignore.leaves_out("d/a.pyc", directory=False)


def test_nothing_below_a_directory_that_is_left_out_comes_back(tmp_path):
    for path in ("d/keep.py", "e/keep.py", "e/drop.py"):
        (tmp_path / "tree" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / path).touch()
    (tmp_path / "tree" / ".aotignore").write_text("d/\n!d/keep.py\ne/*\n!e/keep.py\n")
    assert pack_tree(tmp_path / "tree", tmp_path / "out").files == ("e/keep.py",)


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    if shutil.which("git") is None:
        pytest.skip("no git on PATH")
    root = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "-q", str(root)], check=True, capture_output=True)
    return root


# Not "a**": git before 2.41 compares pointers of two texts there, and answers by chance.
PARTS = st.sampled_from(
    ["a", "b", "ab", "a.py", "c d", "x-1", "*", "**", "?", "*.py", "a*", "[ab]", "[!a]*", "***", "\\a"]
)
PATTERNS = st.tuples(
    st.sampled_from(["", "!"]),
    st.sampled_from(["", "/"]),
    st.lists(PARTS, min_size=1, max_size=4).map("/".join),
    st.sampled_from(["", "", "/", " "]),
).map("".join)
NAMES = st.sampled_from(["a", "b", "ab", "abc", "a.py", "c d", "x-1", "p"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(patterns=st.lists(PATTERNS, min_size=1, max_size=4), paths=st.lists(PATHS, min_size=1, max_size=12, unique=True))
def test_git_decides_the_same(repository, patterns, paths):
    """Over paths as the walk meets them: each directory before what is in it."""
    (repository / ".git" / "info").mkdir(exist_ok=True)
    (repository / ".git" / "info" / "exclude").write_text("\n".join(patterns) + "\n")
    run = subprocess.run(
        ["git", "-C", str(repository), "check-ignore", "--no-index", "--stdin", "-z"],
        input="\0".join(paths) + "\0",
        capture_output=True,
        text=True,
    )
    by_git = set(filter(None, run.stdout.split("\0")))
    ignore = Ignore.parse("\n".join(patterns))

    def left_out(path: str) -> bool:
        parents = [path[:index] for index, character in enumerate(path) if character == "/"]
        if any(ignore.leaves_out(parent, directory=True) for parent in parents):
            return True
        return ignore.leaves_out(path, directory=False)

    assert {path for path in paths if left_out(path)} == by_git
