"""What a child in bubblewrap can see and do, and what it cannot."""

import json
import os
import socket
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from aot.errors import InvalidInput
from aot.sandbox import Bind, BindMode, NoSandbox, SandboxKind, find_sandbox, run_child
from tests.sandbox_children import EACH_KIND, open_sandbox, run_python, some_limits

ISOLATED = SandboxKind.BUBBLEWRAP


def ask(code: str, *arguments: str, **changed: Any) -> Any:
    """What `code` leaves in `answer`, in a child with isolation."""
    end = run_python(f"import json, os, sys\n{code}\nprint(json.dumps(answer))", *arguments, kind=ISOLATED, **changed)
    assert end.succeeded, end
    return json.loads(end.stdout_tail)


def attempt(statement: str) -> str:
    return f"try:\n    {statement}\n    answer = 'done'\nexcept OSError as error:\n    answer = type(error).__name__"


def test_a_loopback_server_of_the_host_cannot_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = "import socket\n" + attempt("socket.create_connection(('127.0.0.1', int(sys.argv[1])), 2)")
        port = str(server.getsockname()[1])
        assert ask(code, port) != "done"
        # The same code does reach it without isolation, so it is isolation that the line above shows.
        plain = run_python(f"import json, sys\n{code}\nprint(answer)", port, kind=SandboxKind.PROCESS)
        assert plain.stdout_tail == "done\n"


def test_processes_of_one_command_meet_by_name() -> None:
    """Ranks do: torch's launcher looks for `localhost`, gloo for the host's own name."""
    code = "import socket; answer = [socket.gethostbyname(name) for name in ('localhost', socket.gethostname())]"
    assert ask(code) == ["127.0.0.1", "127.0.0.1"]


def test_homes_are_not_visible() -> None:
    homes = sorted({"/root", "/home", str(Path.home())})
    code = "answer = [name for home in sys.argv[1:] if os.path.isdir(home) for name in os.listdir(home)]"
    listed = set(ask(code, *homes))
    # A Python that lies below a home is shown, and nothing beside it.
    prefixes = {Path(prefix) for prefix in (os.sys.prefix, os.sys.base_prefix)}
    allowed = {part for prefix in prefixes for part in prefix.parts}
    assert listed <= allowed
    assert not ask("answer = os.path.exists(sys.argv[1])", str(Path.home() / ".bashrc"))


def test_secrets_in_etc_are_not_visible() -> None:
    assert ask("answer = [os.path.exists(p) for p in ('/etc/shadow', '/etc/passwd', '/run', '/var')]") == [
        False,
        True,
        False,
        False,
    ]


@EACH_KIND
def test_the_environment_is_what_was_given_and_the_directory(
    kind: SandboxKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AOT_SECRET", "1")
    end = run_child(
        ["/usr/bin/env"], cwd=Path("/usr"), env={"A": "b c"}, limits=some_limits(), sandbox=open_sandbox(kind)
    )
    assert sorted(end.stdout_tail.splitlines()) == ["A=b c", "PWD=/usr"]


@EACH_KIND
@pytest.mark.parametrize("env", [{"A=": "1"}, {"": "1"}, {"A": "1\0--bind\0/\0/"}])
def test_variables_that_could_smuggle_options_are_refused(kind: SandboxKind, env: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="variables"):
        run_python("pass", kind=kind, env=env)


def test_variables_for_the_loader_do_not_reach_bubblewrap(tmp_path: Path) -> None:
    # Were they given to bubblewrap, the loader would complain about the missing library twice.
    end = run_python("pass", kind=ISOLATED, env={"LD_PRELOAD": str(tmp_path / "absent.so")})
    assert end.stderr_tail.count("cannot be preloaded") == 1


def test_readable_places_are_read_only_and_writable_ones_are_not(tmp_path: Path) -> None:
    shown, hidden, output = (tmp_path / name for name in ("shown", "hidden", "shown/output"))
    for place in (shown, hidden, output):
        place.mkdir()
    (shown / "file").write_text("text")
    read = "answer = [open(sys.argv[1] + '/file').read(), os.path.exists(sys.argv[2])]"
    assert ask(read, str(shown), str(hidden), readable=[shown]) == ["text", False]
    write = attempt("open(sys.argv[1] + '/new', 'w').write('made')")
    assert ask(write, str(shown), readable=[shown]) == "OSError"
    assert ask(write, str(output), readable=[shown], writable=[output]) == "done"
    assert (output / "new").read_text() == "made"


def test_a_place_can_be_shown_under_a_fixed_name(tmp_path: Path) -> None:
    binds = [Bind(tmp_path, PurePosixPath("/tmp"), BindMode.WRITE)]
    answer = ask("open('here', 'w').close(); answer = os.getcwd()", cwd=PurePosixPath("/tmp"), binds=binds)
    assert answer == "/tmp"
    assert (tmp_path / "here").exists()


def test_links_on_the_way_to_a_place_are_kept(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("text")
    (tmp_path / "link").symlink_to("real")
    place = tmp_path / "link"
    assert ask(
        "answer = [open(sys.argv[1] + '/file').read(), os.path.realpath(sys.argv[1])]", str(place), readable=[place]
    ) == [
        "text",
        str(tmp_path / "real"),
    ]


@pytest.mark.parametrize("place", ["/", "/dev", "/usr", "/etc", "/proc"])
def test_the_system_is_read_only(place: str) -> None:
    assert ask(attempt("open(sys.argv[1] + '/new', 'w')"), place) != "done"


def test_kernel_settings_cannot_be_written_even_by_root() -> None:
    # Opened and closed again: nothing is changed where this fails.
    code = (
        "answer = []\n"
        "for base, directories, files in os.walk('/proc'):\n"
        "    directories[:] = [name for name in directories if not name.isdigit()]\n"
        "    for path in (os.path.join(base, name) for name in files):\n"
        "        if os.path.islink(path) or not os.stat(path).st_mode & 0o222: continue\n"
        "        try: os.close(os.open(path, os.O_WRONLY))\n"
        "        except OSError: continue\n"
        "        answer.append(path)"
    )
    assert ask(code) == []


def test_a_child_can_name_its_threads_in_proc() -> None:
    # CUDA does, and does not initialise where it cannot.
    code = "with open(f'/proc/self/task/{os.getpid()}/comm', 'w') as file: file.write('word')\n"
    assert ask(code + "answer = open('/proc/self/comm').read()") == "word\n"


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])
def test_memory_files_are_bounded(place: str) -> None:
    assert ask(
        attempt("open(sys.argv[1] + '/f', 'wb').write(bytes(300 << 20))"),
        place,
        limits=some_limits(memory_bytes=1 << 30),
    ) == ("OSError")


def test_processes_of_the_host_are_not_visible() -> None:
    assert ask("answer = len([n for n in os.listdir('/proc') if n.isdigit()])") == 2


def test_a_child_has_no_capabilities_and_a_fixed_host_name() -> None:
    code = (
        "answer = [os.uname().nodename] + [l.split()[1] for l in open('/proc/self/status') if l.startswith('CapEff')]"
    )
    assert ask(code) == ["aot", "0" * 16]


def test_namespaces_cannot_be_made_inside() -> None:
    sandbox = open_sandbox(ISOLATED)
    if "--disable-userns" not in sandbox.options:
        pytest.skip("this bubblewrap cannot forbid it")
    root = Path(__file__).parents[2]
    code = "import sys; sys.path.insert(0, sys.argv[1])\nfrom aot.sandbox import find_sandbox\nprint(find_sandbox())"
    end = run_python(code, str(root), kind=ISOLATED, readable=[root / "aot"], env={"PATH": "/usr/bin:/bin"})
    assert end.stdout_tail.startswith("NoSandbox(reason='")
    assert "bwrap" in end.stdout_tail


def test_a_missing_bubblewrap_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    find_sandbox.cache_clear()
    try:
        assert find_sandbox() == NoSandbox("bwrap is not installed")
    finally:
        find_sandbox.cache_clear()


def test_a_forbidden_bubblewrap_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text(
        '#!/bin/sh\n[ "$1" = --help ] && exit 0\necho "bwrap: No permissions to create new namespace" >&2\nexit 1\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    find_sandbox.cache_clear()
    try:
        found = find_sandbox()
    finally:
        find_sandbox.cache_clear()
    assert found == NoSandbox(f"{program} cannot isolate a process here: bwrap: No permissions to create new namespace")
