"""The commands that Inductor gives to the C++ compiler: some run beside others, and what every build has in common is
done once. Torch 2.11 to 2.14.

A wrapper compiles while the kernels do, and only a command that names its object waits for it. Of its two halves
(aot.compile.interface) the program's alone is compiled: the other is an object beside the precompiled headers, made by
the first build that needs it. What the headers come to, preprocessed, lies there as well (aot.compile.preprocessed).
"""

import contextlib
import shlex
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from aot.compile.interface import Halves, split_wrapper
from aot.compile.preprocessed import find_kept, keep, read_dependencies
from aot.schema.codec import encode
from aot.schema.digest import Digest

Run = Callable[[str, str], None]


@contextlib.contextmanager
def compiler_commands() -> Iterator[None]:
    """Let Inductor's compiler commands inside the block overlap; where it runs them otherwise, they stay as they are.

    What a command that was put aside raises is raised by the one that waits for it, at the latest at the end.
    """
    import torch
    from torch._inductor import codecache, cpp_builder

    run = getattr(cpp_builder, "run_compile_cmd", None)
    if run is None:
        yield
        return
    place = Path(torch.__file__).parent
    with ThreadPoolExecutor(max_workers=2) as beside:
        commands = Commands(
            run=run,
            beside=beside,
            headers=Path(codecache._HEADER_DIR) if hasattr(codecache, "_HEADER_DIR") else None,
            interface=_text_of(place / "_inductor/codegen/aoti_runtime/interface.cpp"),
            model_base=_text_of(place / "include/torch/csrc/inductor/aoti_runtime/model_base.h"),
        )
        cpp_builder.run_compile_cmd = commands.give
        try:
            yield
            commands.finish()
        finally:
            cpp_builder.run_compile_cmd = run


def _text_of(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


@dataclass(kw_only=True)
class Commands:
    """`run` runs one command line in a directory and raises where it fails; `beside` runs what need not wait.

    `headers` is where precompiled headers are; `interface` and `model_base` are torch's sources that `split_wrapper`
    asks for.
    """

    run: Run
    beside: ThreadPoolExecutor
    headers: Path | None
    interface: str
    model_base: str
    # For each object that is being made: what has to be linked with it, once it is there.
    _awaited: dict[str, tuple["CompileCommand", Future[Path | None]]] = field(default_factory=dict)

    def give(self, cmd_line: str, cwd: str) -> None:
        """Run a command, or begin to: its object is waited for by the command that names it."""
        command = CompileCommand.of(cmd_line)
        if command is not None and command.source.endswith(".wrapper.cpp"):
            self._awaited[command.target] = (command, self._begin(command))
            return
        header = CompileCommand.of(cmd_line, what="-E")
        if header is not None and self.headers is not None:
            self._preprocess(header, self.headers, cwd)
            return
        words, in_halves = [], []
        for word in shlex.split(cmd_line):
            words.append(word)
            if word in self._awaited:
                wrapper, made = self._awaited.pop(word)
                if more := made.result():
                    words.append(str(more))
                    in_halves.append(wrapper)
        try:
            self.run(shlex.join(words), cwd)
        except Exception:
            if not in_halves:
                raise
            # Halves that do not go together, for a device or release that was not tried: as torch does it, then.
            for wrapper in in_halves:
                self._compile(wrapper, None, None)
            self.run(cmd_line, cwd)

    def _preprocess(self, command: "CompileCommand", headers: Path, cwd: str) -> None:
        source, target = Path(command.source), Path(command.target)
        name = f"preprocessed-{Digest.of(encode((source.read_text(), command.flags))).short}"
        text = find_kept(headers, name)
        if text is not None:
            target.write_bytes(text)
            return
        rule = target.with_suffix(".d")
        self.run(f"{shlex.join(command.words)} -MD -MF {shlex.quote(str(rule))}", cwd)
        files = read_dependencies(rule.read_text()) if rule.is_file() else ()
        # Its own source is a file of this build; without any other nothing would ever change.
        if used := tuple(file for file in files if file != source):
            with contextlib.suppress(OSError):
                keep(headers, name, text=target.read_bytes(), files=used)

    def finish(self) -> None:
        """Wait for what no command has named."""
        for _, made in self._awaited.values():
            made.result()

    def _begin(self, command: "CompileCommand") -> Future[Path | None]:
        halves = split_wrapper(Path(command.source).read_text(), interface=self.interface, model_base=self.model_base)
        if halves is None or command.headers is None:
            return self.beside.submit(self._compile, command, None, None)
        # In this order, so that one free thread is enough: the second waits for the first.
        common = self.beside.submit(self._ensure_interface, command, halves)
        return self.beside.submit(self._compile, command, halves, common)

    def _compile(self, command: "CompileCommand", halves: Halves | None, common: Future[Path] | None) -> Path | None:
        """Make the object of a wrapper; return the other half where this one needs it."""
        if halves is not None and common is not None:
            program = Path(command.source).with_suffix(".program.cpp")
            program.write_text(halves.program)
            # Whether a program compiles, and what is said of it, is decided by the source as torch has written it.
            with contextlib.suppress(Exception):
                self.run(command.line(str(program), command.target), str(program.parent))
                return common.result()
        self.run(command.line(command.source, command.target), str(Path(command.target).parent))
        return None

    def _ensure_interface(self, command: "CompileCommand", halves: Halves) -> Path:
        """Return the object of the half that programs share, beside the headers that it is compiled with."""
        assert command.headers is not None
        name = f"interface-{Digest.of(encode((halves.interface, command.flags))).short}"
        made, source = (command.headers / f"{name}{suffix}" for suffix in (".o", ".cpp"))
        if not made.exists():
            source.write_text(halves.interface)
            part = made.with_suffix(".part")
            self.run(command.line(str(source), str(part)), str(command.headers))
            part.rename(made)
        return made


@dataclass(frozen=True, kw_only=True)
class CompileCommand:
    """A command, in `words`, that makes `target` out of `source` alone."""

    words: tuple[str, ...]
    source: str
    target: str

    @classmethod
    def of(cls, cmd_line: str, *, what: str = "-c") -> "CompileCommand | None":
        """Read a command line; None for one that does something else than `what` says: -c compiles, -E preprocesses."""
        words = tuple(shlex.split(cmd_line))
        sources = [word for word in words if word.endswith((".cpp", ".S", ".hpp"))]
        if what not in words or "-o" not in words[:-1] or len(sources) != 1:
            return None
        return cls(words=words, source=sources[0], target=words[words.index("-o") + 1])

    @property
    def headers(self) -> Path | None:
        """The directory of precompiled headers that it uses; None where it uses none.

        The name of such a header says what is in all that it includes: without one nothing tells when they change.
        """
        place = self._included
        return Path(place).parent if place else None

    @property
    def flags(self) -> tuple[str, ...]:
        """Everything that decides what comes out beside the source, as it is on every machine of one toolchain."""
        named = {self.source: "", self.target: "", self._included: Path(self._included).name}
        return tuple(named.get(word, word) for word in self.words)

    @property
    def _included(self) -> str:
        return next((after for word, after in zip(self.words, self.words[1:], strict=False) if word == "-include"), "")

    def line(self, source: str, target: str) -> str:
        """The same command for another source and another object."""
        changed = {self.source: source, self.target: target}
        return shlex.join(changed.get(word, word) for word in self.words)
