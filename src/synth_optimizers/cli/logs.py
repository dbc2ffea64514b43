"""Log records of a command: which of them are shown, and how they look on stderr."""

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from synth_optimizers._synth_optimizers import LOGGERS
from synth_optimizers.cli.faults import Refusal
from synth_optimizers.cli.options import LOG_VARIABLE
from synth_optimizers.cli.output import say

ROOT = "synth_optimizers"
LEVELS = {
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": 5,
    "off": logging.CRITICAL,
}
NAMES = {number: name.upper() for name, number in LEVELS.items()}


def configure(directives: str, form: str, usual: str) -> None:
    """Write the records of the library to stderr; `directives` are levels, each for everything or for one logger.

    Loggers that no directive names show what is `usual` for the command.
    """
    levels = {"": LEVELS[usual], **_parsed(directives)}
    root = logging.getLogger(ROOT)
    root.addHandler(ToStderr(_json if form == "json" else _text))
    # The application is this command, so nothing above these loggers has a say.
    root.propagate = False
    for name, level in levels.items():
        logging.getLogger(f"{ROOT}.{name}" if name else ROOT).setLevel(level)


def _parsed(directives: str) -> dict[str, int]:
    found = {}
    for directive in directives.split(","):
        name, _, level = directive.strip().rpartition("=")
        number = LEVELS.get(level.strip().lower().replace("warning", "warn"))
        if number is None:
            raise Refusal(
                f"{level.strip()!r} is not a log level",
                f"--log-level and {LOG_VARIABLE} take error, warn, info, debug, trace or off, for everything or for one"
                " logger, such as container=debug,warn.",
            )
        logger = name.strip().removeprefix(ROOT).removeprefix(".")
        if logger and f"{ROOT}.{logger}" not in LOGGERS:
            known = ", ".join(sorted(known.removeprefix(f"{ROOT}.") for known in LOGGERS if known != ROOT))
            raise Refusal(f"{logger!r} is not a logger", f"--log-level and {LOG_VARIABLE} know {known}.")
        found[logger] = number
    return found


class ToStderr(logging.Handler):
    """Writes records where everything for people goes; while there is a live view, above its panel."""

    def __init__(self, line: Callable[[logging.LogRecord], str]) -> None:
        super().__init__()
        self.line = line

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        say(self.line(record))


def _text(record: logging.LogRecord) -> str:
    """Return one line that steers no terminal: time, level, logger, message, and the fields."""
    message = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in record.getMessage())
    name = record.name.removeprefix(f"{ROOT}.")
    fields = "".join(f" {name}={_word(value)}" for name, value in getattr(record, "fields", {}).items())
    return f"{_time(record)} {_level(record):<5} {name}: {message}{fields}"


def _json(record: logging.LogRecord) -> str:
    """Return one JSON object with the fields beside time, level, logger and message."""
    known = {"timestamp": _time(record), "level": _level(record), "logger": record.name}
    return json.dumps({**getattr(record, "fields", {}), **known, "message": record.getMessage()})


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _level(record: logging.LogRecord) -> str:
    return NAMES.get(record.levelno, record.levelname)


def _word(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable():
        return json.dumps(value)
    return value if value and not set(value) & set(' "=,') else json.dumps(value, ensure_ascii=False)
