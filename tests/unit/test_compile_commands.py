"""What Inductor's compiler commands become: wrappers compile beside kernels, and what they share is compiled once."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch._inductor import cpp_builder

from aot.compile.interface import Halves, split_wrapper
from aot.compile.preprocessed import read_dependencies
from aot.compile.torch_commands import Commands, CompileCommand, compiler_commands
from aot.compile.torch_inductor import share_headers

INTERFACE = """
    #include <interface.h>
    static int last;

    extern "C" {
    int create() {
      return last;
    }
    } // extern "C"
"""
MODEL_BASE = """
class AOTInductorModelBase {
  AOTInductorModelBase(
      size_t inputs,
      const std::string& device,
      bool weights = true)
      : inputs_(inputs) {
  }
  AOTInductorModelBase(const AOTInductorModelBase&) = delete;
"""
WRAPPER = """#include <cpu.h>

#include <interface.h>
static int last;

extern "C" {
int create() {
  return last;
}
} // extern "C"
void program() {}
"""


def halves(code: str = WRAPPER, *, interface: str = INTERFACE, model_base: str = MODEL_BASE) -> Halves | None:
    return split_wrapper(code, interface=interface, model_base=model_base)


def test_the_interface_goes_to_one_half_and_the_program_to_the_other() -> None:
    found = halves()
    assert found is not None
    assert "int create()" in found.interface and "void program()" not in found.interface
    assert "void program()" in found.program and "int create()" not in found.program
    both = "#include <interface.h>\nstatic int last;\n"
    assert found.interface.strip().startswith(both)
    assert found.program.startswith(f"#include <cpu.h>\n\n{both}")


def test_programs_that_include_something_else_share_the_interface() -> None:
    one, other = halves(), halves("#include <more.h>\n" + WRAPPER.replace("program", "another"))
    assert one is not None and other is not None
    assert one.interface == other.interface and one.program != other.program


def test_the_constructor_is_made_by_the_interface_and_known_to_the_program() -> None:
    found = halves()
    assert found is not None
    made = "AOTInductorModelBase<AOTInductorModel>::AOTInductorModelBase(size_t inputs, const std::string& device, "
    assert f"\ntemplate {made}bool weights);\n" in found.interface
    assert f"\ntemplate <> {made}bool weights);\n" in found.program


@pytest.mark.parametrize(
    "other",
    [
        {"code": WRAPPER.replace("return last", "return 1")},
        {"interface": ""},
        {"interface": INTERFACE.replace('} // extern "C"', "}"), "code": WRAPPER.replace('} // extern "C"', "}")},
        {"model_base": ""},
        {"model_base": MODEL_BASE + MODEL_BASE},
    ],
)
def test_what_is_not_known_to_be_right_is_left_whole(other: dict[str, str]) -> None:
    assert halves(**other) is None


def test_the_sources_of_this_torch_are_of_the_known_form() -> None:
    place = Path(torch.__file__).parent
    interface = (place / "_inductor/codegen/aoti_runtime/interface.cpp").read_text()
    model_base = (place / "include/torch/csrc/inductor/aoti_runtime/model_base.h").read_text()
    found = halves(
        "#include <torch/x.h>\n" + interface + "void program() {}\n", interface=interface, model_base=model_base
    )
    assert found is not None
    assert "AOTInductorModelContainerCreate(" in found.interface
    assert "AOTInductorModelContainerCreate(" not in found.program
    assert "std::optional<std::string> cubin_dir, bool include_weights);" in found.program


@dataclass
class Compiler:
    """Stands for g++: keeps what it was asked, makes the object, and fails for sources named in `failing`."""

    failing: tuple[str, ...] = ()
    asked: list[str] = field(default_factory=list)

    def __call__(self, cmd_line: str, cwd: str) -> None:
        self.asked.append(cmd_line)
        words = cmd_line.split()
        target = Path(words[words.index("-o") + 1])
        if failing := [name for name in self.failing if any(word.endswith(name) for word in words)]:
            raise RuntimeError(f"no {failing[0]}")
        target.write_text("object")

    @property
    def sources(self) -> list[str]:
        """The file that each command compiles, in order; "link" for one that does not compile."""
        commands = [CompileCommand.of(line) for line in self.asked]
        return [Path(one.source).name if one else "link" for one in commands]


@dataclass
class Build:
    """One build in `place`, with a wrapper and kernels, and headers that it may share."""

    place: Path
    headers: Path
    commands: Commands

    def compile(self, name: str, *, flags: str = "-O1") -> None:
        header = f"-include {self.headers}/abc.h" if name == "m.wrapper" else ""
        self.commands.give(f"g++ {self.place}/{name}.cpp {flags} {header} -c -o {self.place}/{name}.o", str(self.place))

    def link(self) -> None:
        self.commands.give(
            f"g++ {self.place}/m.wrapper.o {self.place}/m.kernel.o -shared -o {self.place}/m.so", str(self.place)
        )


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield pool


def a_build(place: Path, beside: ThreadPoolExecutor, run: object, *, code: str = WRAPPER) -> Build:
    place.mkdir(exist_ok=True)
    headers = place.parent / "headers"
    headers.mkdir(exist_ok=True)
    (place / "m.wrapper.cpp").write_text(code)
    commands = Commands(
        run=run,  # type: ignore[arg-type]
        beside=beside,
        headers=headers,
        interface=INTERFACE,
        model_base=MODEL_BASE,
    )
    return Build(place, headers, commands)


def test_a_wrapper_compiles_while_the_kernels_do_and_the_link_waits(tmp_path: Path, beside: ThreadPoolExecutor) -> None:
    kernel_began, order = threading.Event(), []

    def run(cmd_line: str, cwd: str) -> None:
        if "m.kernel.cpp" in cmd_line:
            kernel_began.set()
        elif ".wrapper.program.cpp" in cmd_line:
            assert kernel_began.wait(20), "the kernel waits for the wrapper"
            order.append("wrapper")
        elif "-shared" in cmd_line:
            order.append("link")
        else:
            Compiler()(cmd_line, cwd)

    build = a_build(tmp_path / "build", beside, run)
    build.compile("m.wrapper")
    build.compile("m.kernel")
    build.link()
    assert order == ["wrapper", "link"]


def test_the_interface_is_compiled_by_the_first_build_and_linked_by_all(
    tmp_path: Path, beside: ThreadPoolExecutor
) -> None:
    compilers = (Compiler(), Compiler())
    for number, compiler in enumerate(compilers):
        build = a_build(tmp_path / f"build-{number}", beside, compiler)
        build.compile("m.wrapper")
        build.compile("m.kernel")
        build.link()
    [made] = (tmp_path / "headers").glob("interface-*.o")
    first, second = compilers
    assert sorted(first.sources) == sorted([f"{made.stem}.cpp", "m.wrapper.program.cpp", "m.kernel.cpp", "link"])
    assert sorted(second.sources) == sorted(["m.wrapper.program.cpp", "m.kernel.cpp", "link"])
    for number, compiler in enumerate(compilers):
        place = tmp_path / f"build-{number}"
        assert f"{place}/m.wrapper.o {made} {place}/m.kernel.o" in compiler.asked[-1]


def test_other_flags_or_headers_have_an_interface_of_their_own(tmp_path: Path, beside: ThreadPoolExecutor) -> None:
    build = a_build(tmp_path / "build", beside, Compiler())
    for flags in ("-O1", "-O2", "-O1"):
        build.compile("m.wrapper", flags=flags)
        build.link()
    assert len(list(build.headers.glob("interface-*.o"))) == 2


def test_a_wrapper_without_precompiled_headers_is_compiled_whole(tmp_path: Path, beside: ThreadPoolExecutor) -> None:
    compiler = Compiler()
    build = a_build(tmp_path / "build", beside, compiler)
    place = build.place
    build.commands.give(f"g++ {place}/m.wrapper.cpp -c -o {place}/m.wrapper.o", str(place))
    build.link()
    assert compiler.sources == ["m.wrapper.cpp", "link"]
    assert "interface-" not in compiler.asked[-1]


@pytest.mark.parametrize("failing", ["m.wrapper.program.cpp", ".part"])
def test_a_half_that_does_not_compile_gives_way_to_the_whole(
    tmp_path: Path, beside: ThreadPoolExecutor, failing: str
) -> None:
    compiler = Compiler((failing,))
    build = a_build(tmp_path / "build", beside, compiler)
    build.compile("m.wrapper")
    build.link()
    # The interface compiles beside, and may be asked for at any time.
    assert [one for one in compiler.sources if not one.startswith("interface-")][-2:] == ["m.wrapper.cpp", "link"]
    (link,) = [line for line in compiler.asked if "-shared" in line]
    assert "interface-" not in link


def test_halves_that_do_not_link_give_way_to_the_whole(tmp_path: Path, beside: ThreadPoolExecutor) -> None:
    class Linker(Compiler):
        def __call__(self, cmd_line: str, cwd: str) -> None:
            super().__call__(cmd_line, cwd)
            if "-shared" in cmd_line and "interface-" in cmd_line:
                raise RuntimeError("multiple definition")

    compiler = Linker()
    build = a_build(tmp_path / "build", beside, compiler)
    build.compile("m.wrapper")
    build.link()
    assert compiler.sources[-3:] == ["link", "m.wrapper.cpp", "link"]
    assert "interface-" not in compiler.asked[-1]


def test_a_link_that_fails_without_halves_fails_at_once(tmp_path: Path, beside: ThreadPoolExecutor) -> None:
    compiler = Compiler(("m.so",))
    build = a_build(tmp_path / "build", beside, compiler, code="another form")
    build.compile("m.wrapper")
    with pytest.raises(RuntimeError, match=r"no m\.so"):
        build.link()
    assert compiler.sources == ["m.wrapper.cpp", "link"]


def test_a_wrapper_that_does_not_compile_fails_the_link_with_what_was_said_of_torchs_own_source(
    tmp_path: Path, beside: ThreadPoolExecutor
) -> None:
    compiler = Compiler(("m.wrapper.program.cpp", "m.wrapper.cpp"))
    build = a_build(tmp_path / "build", beside, compiler)
    build.compile("m.wrapper")
    with pytest.raises(RuntimeError, match=r"no m\.wrapper\.cpp"):
        build.link()
    assert "link" not in compiler.sources


def test_a_wrapper_that_nothing_waits_for_is_waited_for_at_the_end(tmp_path: Path, beside: ThreadPoolExecutor) -> None:
    build = a_build(tmp_path / "build", beside, Compiler(("m.wrapper.cpp",)), code="another form")
    build.compile("m.wrapper")
    with pytest.raises(RuntimeError, match=r"no m\.wrapper\.cpp"):
        build.commands.finish()


@dataclass
class Preprocessor:
    """Stands for g++ -E over one header: counts, and writes the header's text and what it was made of."""

    header: Path
    asked: int = 0

    def __call__(self, cmd_line: str, cwd: str) -> None:
        self.asked += 1
        words = cmd_line.split()
        source, target, rule = (Path(words[words.index(name) + 1]) for name in ("g++", "-o", "-MF"))
        target.write_text(f"{source.read_text()} {self.header.read_text()}")
        rule.write_text(f"header.o: {source} \\\n {self.header}\n")

    def give(self, place: Path, beside: ThreadPoolExecutor, *, flags: str = "-O1") -> str:
        """One build's preprocessing in `place`; the text that Inductor then hashes."""
        build = a_build(place, beside, self)
        (place / "header.hpp").write_text("#include <x.h>")
        build.commands.give(f"g++ {place}/header.hpp {flags} -E -P -o {place}/header.i", str(place))
        return (place / "header.i").read_text()


@pytest.fixture
def preprocessor(tmp_path: Path) -> Preprocessor:
    (tmp_path / "include").mkdir()
    header = tmp_path / "include" / "x.h"
    header.write_text("int x;")
    return Preprocessor(header)


def test_a_header_is_preprocessed_by_the_first_build_alone(
    tmp_path: Path, beside: ThreadPoolExecutor, preprocessor: Preprocessor
) -> None:
    texts = {preprocessor.give(tmp_path / name, beside) for name in ("first", "second")}
    assert texts == {"#include <x.h> int x;"}
    assert preprocessor.asked == 1
    preprocessor.give(tmp_path / "third", beside, flags="-O3")
    assert preprocessor.asked == 2, "other flags may come to another text"


def test_a_header_that_has_changed_or_got_a_neighbour_is_preprocessed_again(
    tmp_path: Path, beside: ThreadPoolExecutor, preprocessor: Preprocessor
) -> None:
    preprocessor.give(tmp_path / "first", beside)
    preprocessor.header.write_text("int y;")
    assert preprocessor.give(tmp_path / "second", beside) == "#include <x.h> int y;"
    (preprocessor.header.parent / "w.h").write_text("")
    preprocessor.give(tmp_path / "third", beside)
    assert preprocessor.asked == 3


def test_what_other_builds_share_is_not_written_through(
    tmp_path: Path, beside: ThreadPoolExecutor, preprocessor: Preprocessor
) -> None:
    preprocessor.give(tmp_path / "first", beside)
    (tmp_path / "headers").rename(tmp_path / "shared")
    shared = {path.name: path.read_bytes() for path in (tmp_path / "shared").iterdir()}
    share_headers(tmp_path / "shared", tmp_path / "headers")
    preprocessor.header.write_text("int y;")
    assert preprocessor.give(tmp_path / "second", beside) == "#include <x.h> int y;"
    assert {path.name: path.read_bytes() for path in (tmp_path / "shared").iterdir()} == shared


def test_a_kept_text_that_is_cut_short_is_not_used(
    tmp_path: Path, beside: ThreadPoolExecutor, preprocessor: Preprocessor
) -> None:
    preprocessor.give(tmp_path / "first", beside)
    [kept] = (tmp_path / "headers").glob("*.i")
    kept.write_text("#inc")
    assert preprocessor.give(tmp_path / "second", beside) == "#include <x.h> int x;"


def test_a_compilers_rule_is_read_with_its_quoting() -> None:
    rule = "a b.o: /usr/a\\ b.h \\\n /usr/$$c.h /usr/d\\#.h\n"
    assert read_dependencies(rule) == (Path("/usr/a b.h"), Path("/usr/$c.h"), Path("/usr/d#.h"))


def test_torchs_own_function_is_replaced_inside_the_block_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(cpp_builder, "run_compile_cmd", lambda cmd_line, cwd: asked.append((cmd_line, cwd)))
    own = cpp_builder.run_compile_cmd
    with compiler_commands():
        assert cpp_builder.run_compile_cmd != own
        cpp_builder.run_compile_cmd("g++ 'a file.o' -shared", cwd="/")
    assert cpp_builder.run_compile_cmd is own
    assert asked == [("g++ 'a file.o' -shared", "/")]


def test_a_torch_that_compiles_otherwise_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(cpp_builder, "run_compile_cmd")
    with compiler_commands():
        assert not hasattr(cpp_builder, "run_compile_cmd")
