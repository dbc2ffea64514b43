"""Errors as a person or a program meets them: message, detail, hint and exit code, never a traceback."""

import tempfile
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from synth_optimizers.cli.output import say, write_json
from synth_optimizers.cli.words import counted
from synth_optimizers.errors import SynthOptimizerError, error_table
from synth_optimizers.findings import Finding

USAGE = 2
INTERRUPTED = 130


class Refusal(click.ClickException):
    """A wish that cannot be met, found by the command line itself: what it is and what to do."""

    exit_code = USAGE
    code = "usage_error"

    def __init__(self, message: str, hint: str, detail: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        self.detail = detail


class NothingThere(Refusal):
    """What was asked for does not exist, and that is nobody's mistake."""

    exit_code = 1
    code = "nothing_there"


@dataclass(frozen=True, slots=True)
class Fault:
    """What went wrong."""

    exit_code: int
    code: str
    message: str
    detail: str | None
    hint: str
    findings: tuple[Finding, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the document that stands on stdout under `--json`."""
        return {"error": {name: value for name, value in asdict(self).items() if name != "exit_code"}}


def exit_code_of(error_code: str, otherwise: int = 1) -> int:
    """Look an error up in the one table."""
    return next((int(row["exit_code"]) for row in error_table() if row["error_code"] == error_code), otherwise)


def fault_of(error: BaseException) -> Fault:
    """Say what went wrong, whatever it was."""
    if isinstance(error, SynthOptimizerError):
        code = error.error_code
        message = str(error).removeprefix(f"{code}: ")
        return Fault(exit_code_of(code), code, message, error.detail, error.hint, error.findings)
    if isinstance(error, Refusal):
        return Fault(error.exit_code, error.code, error.message, error.detail, error.hint)
    if isinstance(error, click.ClickException):
        return _usage(error)
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return Fault(INTERRUPTED, "interrupted", "interrupted", None, "Nothing was begun that has to be resumed.")
    if isinstance(error, OSError):
        where = "the output" if error.filename is None else error.filename
        hint = "Check that the path exists, that you may read and write it, and that there is space."
        return Fault(1, "io_error", f"{where}: {error.strerror or error}", None, hint)
    return _defect(error)


def show(fault: Fault, *, as_json: bool) -> None:
    """Tell the person, or the program that reads stdout."""
    if as_json:
        write_json(fault.to_dict())
        return
    detail = (fault.detail or "").strip("\n")
    if fault.findings and detail:
        # The detail shows each of them with its place and hint.
        say(detail)
        say(f"error: {counted(len(fault.findings), 'problem')} of the configuration; nothing was begun")
    else:
        say(f"error[{fault.code}]: {fault.message}")
        if detail:
            say(detail)
    if fault.hint and fault.hint not in detail:
        say(f"hint: {fault.hint}")


def _usage(error: click.ClickException) -> Fault:
    context: click.Context | None = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "synth-optimizers"
    detail = context.get_usage() if context is not None else None
    message = error.format_message().rstrip(".")
    message = message[:1].lower() + message[1:]
    hint = f"`{path} --help` lists what there is."
    if context is not None and isinstance(error, click.MissingParameter) and isinstance(error.param, click.Option):
        hint = f"Add {error.param.opts[0]} {error.param.make_metavar(context)}: {error.param.help} {hint}"
    return Fault(error.exit_code, "usage_error", message, detail, hint)


def _defect(error: BaseException) -> Fault:
    """Keep the traceback in a file for whoever mends it."""
    message = f"something went wrong that should not have: {type(error).__name__}: {error}"
    hint = "This is a defect. Report it with the command and the output of `synth-optimizers --version`"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="synth-optimizers-", suffix=".txt", delete=False, encoding="utf-8"
        ) as out:
            out.write("".join(traceback.format_exception(error)))
        hint += f", and add {Path(out.name)}"
    except OSError:
        pass
    return Fault(1, "defect", message, None, f"{hint}.")
