"""Log records of a command: which ones are shown, and how they are formatted on stderr."""

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from synth_optimizers._synth_optimizers import LOGGERS
from synth_optimizers.cli.errors import CommandError
from synth_optimizers.cli.options import LOG_VARIABLE
from synth_optimizers.cli.output import print_message

ROOT = "synth_optimizers"
LEVELS = {
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": 5,
    "off": logging.CRITICAL,
}
LEVEL_NAMES = {number: name.upper() for name, number in LEVELS.items()}


def configure(directives: str, log_format: str, default_level: str) -> None:
    """Write the library's log records to stderr. `directives` are levels, for everything or for one logger.

    Loggers without a directive use the level `default_level`, the default of the command.
    """
    levels = {"": LEVELS[default_level], **_parse_directives(directives)}
    root = logging.getLogger(ROOT)
    root.addHandler(StderrHandler(_format_json if log_format == "json" else _format_text))
    # The command is the application, so handlers and levels of the root logger do not apply.
    root.propagate = False
    for name, level in levels.items():
        logging.getLogger(f"{ROOT}.{name}" if name else ROOT).setLevel(level)


def _parse_directives(directives: str) -> dict[str, int]:
    found = {}
    for directive in directives.split(","):
        name, _, level = directive.strip().rpartition("=")
        number = LEVELS.get(level.strip().lower().replace("warning", "warn"))
        if number is None:
            raise CommandError(
                f"{level.strip()!r} is not a log level",
                f"--log-level and {LOG_VARIABLE} take error, warn, info, debug, trace or off, for everything or for one"
                " logger, such as container=debug,warn.",
            )
        logger = name.strip().removeprefix(ROOT).removeprefix(".")
        if logger and f"{ROOT}.{logger}" not in LOGGERS:
            known = ", ".join(sorted(known.removeprefix(f"{ROOT}.") for known in LOGGERS if known != ROOT))
            raise CommandError(f"{logger!r} is not a logger", f"--log-level and {LOG_VARIABLE} know {known}.")
        found[logger] = number
    return found


class StderrHandler(logging.Handler):
    """Writes records to stderr, above the panel while a live view is active."""

    def __init__(self, format_record: Callable[[logging.LogRecord], str]) -> None:
        super().__init__()
        self.format_record = format_record

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        print_message(self.format_record(record))


def _format_text(record: logging.LogRecord) -> str:
    """Return the record as one line without control characters: time, level, logger, message and fields."""
    message = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in record.getMessage())
    name = record.name.removeprefix(f"{ROOT}.")
    fields = "".join(f" {name}={_format_value(value)}" for name, value in getattr(record, "fields", {}).items())
    return f"{_time(record)} {_level(record):<5} {name}: {message}{fields}"


def _format_json(record: logging.LogRecord) -> str:
    """Return the record as one JSON object: time, level, logger, message and the fields."""
    known = {"timestamp": _time(record), "level": _level(record), "logger": record.name}
    return json.dumps({**getattr(record, "fields", {}), **known, "message": record.getMessage()})


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _level(record: logging.LogRecord) -> str:
    return LEVEL_NAMES.get(record.levelno, record.levelname)


def _format_value(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable():
        return json.dumps(value)
    return value if value and not set(value) & set(' "=,') else json.dumps(value, ensure_ascii=False)
