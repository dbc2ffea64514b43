"""The kinds of planted defects: the class of each, and a reviewer's comment on it."""

from __future__ import annotations

from dataclasses import dataclass

CLASSES = ("correctness", "errors", "security", "resources")


@dataclass(frozen=True)
class Kind:
    """A kind of defect: what it is, and why it is a defect."""

    name: str
    defect_class: str
    what: str
    why: str


_KINDS = (
    Kind(
        "mutable_default", "correctness", "a list or dict as default argument", "it is mutable and all calls share it"
    ),
    Kind("late_binding", "correctness", "an inner function that uses the loop variable", "it sees only the last value"),
    Kind("identity_of_literal", "correctness", "a comparison with a literal by `is`", "use == for strings and numbers"),
    Kind("undefined_name", "correctness", "an undefined name", "the line fails as soon as it runs"),
    Kind(
        "value_never_used",
        "correctness",
        "a local variable that is assigned and never used",
        "its value was meant for later",
    ),
    Kind("repeated_key", "correctness", "a repeated key in a dictionary", "the first value is lost"),
    Kind("assert_on_tuple", "correctness", "an assert on a tuple", "it is always true"),
    Kind(
        "strip_of_suffix",
        "correctness",
        "strip with several characters",
        "it takes off any of them, not a prefix or suffix",
    ),
    Kind(
        "exception_not_raised",
        "correctness",
        "an exception without its raise statement",
        "it is made, but nothing stops here",
    ),
    Kind("local_time", "correctness", "a datetime of now without a timezone", "it is ambiguous"),
    Kind("wrong_boundary", "correctness", "an index that is off by one", "an element is missed or does not exist"),
    Kind("catches_everything", "errors", "a bare except", "it catches even an interrupt; name the exception"),
    Kind(
        "swallowed_error", "errors", "an exception that is ignored in silence", "try, except and pass hide it; log it"
    ),
    Kind("lost_cause", "errors", "an exception raised in an except block without from", "its cause is lost"),
    Kind("return_in_finally", "errors", "a return or break inside finally", "exceptions on their way are lost"),
    Kind("exit_status_ignored", "errors", "a subprocess that is run without check", "nobody sees that it failed"),
    Kind("evaluates_input", "security", "a text that is run with eval", "whoever writes the text runs code"),
    Kind("shell_command", "security", "a subprocess command that goes through a shell", "parts of it can be commands"),
    Kind("query_from_text", "security", "an SQL query built from strings", "values can inject SQL"),
    Kind("secret_in_code", "security", "a hardcoded password", "everyone who reads the code knows it"),
    Kind("weak_hash", "security", "a weak hash such as md5 or sha1", "it is insecure"),
    Kind("unpickles_input", "security", "untrusted data that pickle loads", "it runs code while it reads"),
    Kind("unsafe_yaml", "security", "yaml loaded with an unsafe loader", "it can make any object"),
    Kind("certificate_not_checked", "security", "a request with certificate checks turned off", "anyone can answer it"),
    Kind(
        "guessable_random",
        "security",
        "a secret from the random module",
        "it can be guessed; it is not for cryptography",
    ),
    Kind("open_permissions", "security", "a file with permissions for everyone", "chmod is too permissive"),
    Kind("file_not_closed", "resources", "a file opened without a context manager", "nothing closes it"),
    Kind("no_timeout", "resources", "a request without a timeout", "it can hang forever"),
    Kind("blocking_in_async", "resources", "a call of time.sleep in an async function", "it blocks all other work"),
    Kind("task_not_kept", "resources", "an asyncio task that is not stored", "it can vanish before it is done"),
)

KINDS = {kind.name: kind for kind in _KINDS}
