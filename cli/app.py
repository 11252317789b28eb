"""The Typer application: commands, and the one place where errors become exit codes.

0 done, 1 failed, 2 usage, 130 Ctrl-C. Nothing heavy is imported here.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .. import __version__
from ..core.errors import DflashError, OptionError, refused
from .actions.exit_codes import CANCELLED_EXIT_CODE
from .commands.bench import bench
from .commands.chat import chat
from .commands.doctor import doctor
from .commands.generate import generate
from .commands.quantize import QuantizeCommand, quantize
from .interrupt import ending_on_sigterm, is_interrupt
from .options.foreign import ForeignAwareCommand
from .options.names import with_option_name
from .options.settings import option_defaults
from .text.footer import print_error, print_note


class Group(TyperGroup):
    """Turns the suite's own errors into one line on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; `ctx` is a context of the click that typer brings along."""
        open_missing_streams()
        ctx.meta[TRUST] = take_trust(ctx.args)
        ctx.meta[ARGUMENTS] = [*ctx._protected_args, *ctx.args]
        ctx.meta[ASKS_FOR_HELP] = asks_for_help(ctx.meta[ARGUMENTS])
        try:
            with ending_on_sigterm():
                return super().invoke(ctx)
        except (KeyboardInterrupt, ImportError) as exc:  # where a command has nothing to keep
            if not is_interrupt(exc):
                raise
            print_note("interrupted")
            raise typer.Exit(CANCELLED_EXIT_CODE) from exc
        except DflashError as exc:
            is_usage = isinstance(exc, OptionError)
            print_error(with_option_name(str(exc)) if is_usage else str(exc))
            raise typer.Exit(2 if is_usage else 1) from exc
        except BrokenPipeError as exc:  # the reader went away (`dflash generate | head`)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from exc
        except OSError as exc:
            if exc.filename is None and exc.errno in STDOUT_ERRORS:
                print_error(f"stdout cannot be written: {exc.strerror}")
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            else:  # what no loader had a better word for
                print_error(str(refused(exc)))
            raise typer.Exit(1) from exc
        except MemoryError as exc:
            print_error("there is not enough memory; take a smaller or quantized model")
            raise typer.Exit(1) from exc


ASKS_FOR_HELP, ARGUMENTS = "dflash.asks_for_help", "dflash.arguments"
TRUST = "--trust-settings"


def take_trust(args: list[str]) -> bool:
    """Whether the switch stands among a command's options; it is taken out there."""
    options = args[: args.index("--")] if "--" in args else args
    if TRUST not in options:
        return False
    args.remove(TRUST)
    return True


def asks_for_help(args: Sequence[str]) -> bool:
    """Whether a command is only asked for its help, for which settings are not read: help must
    not fail because of a setting."""
    options = args[: args.index("--")] if "--" in args else args
    return "--help" in options or "-h" in options


STDOUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)
"""What a full or broken stdout says; a file of ours that cannot be written is named by its error,
or is a SlabWriteError or ResourceError by then."""


def open_missing_streams() -> None:
    """Closed standard streams (`<&-`, `>&-`) become /dev/null: else the next file that is opened
    takes their number, and libraries refuse it or write into it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "r" if number == 0 else "w"
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


EXAMPLES = """Examples:

dflash generate --stats

dflash generate "Write a class for a stack." --model Qwen/Qwen3.5-9B

dflash doctor Qwen/Qwen3.5-9B --drafter z-lab/Qwen3.5-9B-DFlash
"""
"""The first runs with nothing but what is bundled."""

app = typer.Typer(
    cls=Group,
    name="dflash",
    no_args_is_help=True,
    epilog=EXAMPLES,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=ForeignAwareCommand)(generate)
app.command(cls=ForeignAwareCommand)(chat)
app.command(cls=QuantizeCommand)(quantize)
app.command()(doctor)
app.command()(bench)


SETTABLE = {
    "generate": None,
    "chat": None,
    "bench": None,
    "doctor": ("drafter", "drafter_bits", "dtype", "kernels"),
}
"""Commands whose options settings can set, None for all: `dflash doctor` alone is the machine's."""


def show_version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        typer.echo(f"dflash-suite {__version__}")
        raise typer.Exit


@app.callback()
def main(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    trust_settings: Annotated[
        bool,
        typer.Option(
            TRUST,
            help="Let dflash.toml of the working directory choose models too. May stand behind the "
            "command as well.",
        ),
    ] = False,
) -> None:
    """Speculative decoding on MLX: several tokens per pass, the text exactly the model's own.

    A DFlash or DFlash2 drafter, or the target's own MTP head, proposes what the target checks.
    """
    if not context.meta.get(ASKS_FOR_HELP, False):
        trusted = trust_settings or context.meta.get(TRUST, False)
        arguments = context.meta.get(ARGUMENTS, ())
        context.default_map = option_defaults(SETTABLE, arguments, trusted=trusted)
