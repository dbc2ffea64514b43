"""The root of the command line: registers the commands and turns every error into an exit code."""

from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from synth_optimizers import __version__
from synth_optimizers.cli.errors import error_report, print_error
from synth_optimizers.cli.output import write_text

PROGRAM = "synth-optimizers"
EPILOG = """\b
Exit codes:
  0    done
  1    the run failed, or the feeds differ
  2    usage or configuration
  3    container or proposer unreachable
  4    a readonly run needs an answer that the cache does not hold
  5    a limit does not allow the work
  129  ended by SIGHUP: the terminal was closed
  130  interrupted by Ctrl-C, or cancelled
  143  ended by SIGTERM

Data is written to stdout, everything for people to stderr. NO_COLOR is honoured."""


COMPLETION_SETUP = {
    "bash": 'eval "$(synth-optimizers completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(synth-optimizers completion zsh)"   in ~/.zshrc',
    "fish": "synth-optimizers completion fish > ~/.config/fish/completions/synth-optimizers.fish",
}
"""For each shell, how to install its completion script."""


COMMANDS = {
    "optimize": "functions",
    "init": "functions",
    "serve": "functions",
    "gepa": "gepa",
    "runs": "runs",
    "ui": "page",
    "events": "events",
    "workspace": "workspace",
}
"""The commands, each with the module that defines it. A module is imported when its command is used or described."""


class Commands(click.Group):
    """Imports commands when they are needed."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401 (those of a group)
        super().__init__(**attributes)
        # The names are known from the start: the help lists them, and a wrong name is compared with them.
        self.commands.update({name: click.Command(name) for name in COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name."""
        module = COMMANDS.get(cmd_name)
        if module is not None:
            self.commands[cmd_name] = getattr(import_module(f"synth_optimizers.cli.{module}"), cmd_name)
        return super().get_command(ctx, cmd_name)


@click.group(
    cls=Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
def cli() -> None:
    """Improve the text inside an AI program by evolution with reflection (GEPA)."""


@cli.command(epilog="\b\n" + "\n".join(COMPLETION_SETUP.values()))
@click.argument("shell", type=click.Choice(sorted(COMPLETION_SETUP)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Write the completion script of a shell."""
    from click.shell_completion import get_completion_class

    root = context.find_root()
    script = get_completion_class(shell)
    if script is None:
        raise click.UsageError(f"synth-optimizers has no completion for {shell}")
    write_text(script(root.command, {}, "synth-optimizers", "_SYNTH_OPTIMIZERS_COMPLETE").source())


def run_command(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    try:
        code = cli.main(list(arguments), prog_name=PROGRAM, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as help_wanted:
        help_wanted.show()
        return help_wanted.exit_code
    except (Exception, KeyboardInterrupt) as error:
        report = error_report(error)
        # The exit code reports the error even when the reader of stdout is gone.
        with suppress(click.exceptions.Exit):
            print_error(report, as_json="--json" in arguments)
        return report.exit_code
