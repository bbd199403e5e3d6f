"""The `aot` command. stdout is data (`--json` everywhere), stderr is talk, exit codes are in `aot.cli.exits`."""

import signal
import sys
from types import FrameType


def main(arguments: list[str] | None = None) -> None:
    """Run one command and leave the process with its exit code."""
    try:
        # A cancelled CI job sends SIGTERM: temporary directories and children are to go then, as with Ctrl-C.
        signal.signal(signal.SIGTERM, _leave)
        code = run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # while modules were imported
        code = 128 + signal.SIGINT
    if code == 128 + signal.SIGINT:
        # One more while the interpreter ends would end it by the signal, and with another code.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # So would one that came through an exec of text (a dataclass that is made), though it was caught: CPython keeps
        # that until text is run again (run_eval_code_obj in Python/pythonrun.c).
        exec("")
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; errors of ours are told on stderr."""
    from aot.cli.app import create_app
    from aot.cli.exits import Exit, exit_code_of, of_system
    from aot.cli.output import say, say_error
    from aot.errors import AotError

    try:
        result = create_app()(arguments, prog_name="aot", standalone_mode=False)
        code = result if isinstance(result, int) else Exit.OK
    except AotError as error:
        say_error(error)
        code = exit_code_of(error)
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    except OSError as error:
        translated = of_system(error)
        if translated is None:
            raise
        say_error(translated)
        code = exit_code_of(translated)
    except Exception as error:
        code = _usage(error)
    if code == Exit.INTERRUPTED:
        say("interrupted")
    return code


def _usage(error: Exception) -> int:
    """Typer's own errors: usage, abort. Anything else is a fault of ours and keeps its traceback."""
    from aot.cli.exits import Exit
    from aot.cli.output import say

    kind = type(error).__name__
    if kind in ("Abort", "Exit"):
        return int(getattr(error, "exit_code", Exit.INTERRUPTED))
    if hasattr(error, "format_message"):
        if text := error.format_message():  # empty where the help was shown already
            say(f"error: {text}")
            say(f"  try: {getattr(getattr(error, 'ctx', None), 'command_path', 'aot')} --help")
        return Exit.BAD_INPUT
    say("a fault of aot, not of yours; report it with what follows")
    raise error


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
