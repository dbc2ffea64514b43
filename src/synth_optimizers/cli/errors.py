"""Turns exceptions into error reports for the terminal or for `--json`: message, detail, hint and exit code."""

import tempfile
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from synth_optimizers.cli.formatting import pluralize
from synth_optimizers.cli.output import print_message, write_json
from synth_optimizers.errors import SynthOptimizerError, error_table
from synth_optimizers.findings import Finding

USAGE = 2
INTERRUPTED = 130


class CommandError(click.ClickException):
    """A usage error found by the command line itself, with a hint."""

    exit_code = USAGE
    code = "usage_error"

    def __init__(self, message: str, hint: str, detail: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        self.detail = detail


class NotFoundError(CommandError):
    """The requested object does not exist; the command was used correctly."""

    exit_code = 1
    code = "not_found"


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """One error as the command line reports it."""

    exit_code: int
    code: str
    message: str
    detail: str | None
    hint: str
    findings: tuple[Finding, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document that `--json` prints on stdout."""
        return {"error": {name: value for name, value in asdict(self).items() if name != "exit_code"}}


def exit_code_for(error_code: str, default: int = 1) -> int:
    """Return the exit code of an error code from the error table, or `default` if the table does not list it."""
    return next((int(row["exit_code"]) for row in error_table() if row["error_code"] == error_code), default)


def error_report(error: BaseException) -> ErrorReport:
    """Convert any exception into an error report."""
    if isinstance(error, SynthOptimizerError):
        code = error.error_code
        message = str(error).removeprefix(f"{code}: ")
        return ErrorReport(exit_code_for(code), code, message, error.detail, error.hint, error.findings)
    if isinstance(error, CommandError):
        return ErrorReport(error.exit_code, error.code, error.message, error.detail, error.hint)
    if isinstance(error, click.ClickException):
        return _usage_error(error)
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return ErrorReport(INTERRUPTED, "interrupted", "interrupted", None, "Run the command again.")
    if isinstance(error, OSError):
        where = "the output" if error.filename is None else error.filename
        hint = "Check that the path exists and is readable and writable, and that the disk has free space."
        return ErrorReport(1, "io_error", f"{where}: {error.strerror or error}", None, hint)
    return _internal_error(error)


def print_error(report: ErrorReport, *, as_json: bool) -> None:
    """Print the error to stderr, or as JSON to stdout."""
    if as_json:
        write_json(report.to_dict())
        return
    detail = (report.detail or "").strip("\n")
    if report.findings and detail:
        # The detail already shows each finding with its location and hint.
        print_message(detail)
        print_message(f"error: {pluralize(len(report.findings), 'problem')} in the configuration; no run started")
    else:
        print_message(f"error[{report.code}]: {report.message}")
        if detail:
            print_message(detail)
    if report.hint and report.hint not in detail:
        print_message(f"hint: {report.hint}")


def _usage_error(error: click.ClickException) -> ErrorReport:
    context: click.Context | None = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "synth-optimizers"
    detail = context.get_usage() if context is not None else None
    message = error.format_message().rstrip(".")
    message = message[:1].lower() + message[1:]
    hint = f"`{path} --help` lists commands and options."
    if context is not None and isinstance(error, click.MissingParameter) and isinstance(error.param, click.Option):
        hint = f"Add {error.param.opts[0]} {error.param.make_metavar(context)}: {error.param.help} {hint}"
    return ErrorReport(error.exit_code, "usage_error", message, detail, hint)


def _internal_error(error: BaseException) -> ErrorReport:
    """Report an internal error and save its traceback to a file for a bug report."""
    message = f"unexpected error: {type(error).__name__}: {error}"
    hint = "This is a defect: report it with the command and the output of `synth-optimizers --version`"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="synth-optimizers-", suffix=".txt", delete=False, encoding="utf-8"
        ) as out:
            out.write("".join(traceback.format_exception(error)))
        hint += f", and add {Path(out.name)}"
    except OSError:
        pass
    return ErrorReport(1, "defect", message, None, f"{hint}.")
