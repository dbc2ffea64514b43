"""The root of the command line: registers the commands and turns every error into an exit code."""

from collections.abc import Sequence
from contextlib import suppress

import click

from synth_optimizers import __version__
from synth_optimizers.cli.errors import error_report, print_error
from synth_optimizers.cli.events import events
from synth_optimizers.cli.functions import init, optimize, serve
from synth_optimizers.cli.gepa import gepa
from synth_optimizers.cli.output import write_text
from synth_optimizers.cli.page import ui
from synth_optimizers.cli.runs import runs
from synth_optimizers.cli.workspace import workspace

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


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
def cli() -> None:
    """Improve the text inside an AI program by evolution with reflection (GEPA)."""


@click.command(epilog="\b\n" + "\n".join(COMPLETION_SETUP.values()))
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


for command in (optimize, init, serve, gepa, runs, ui, events, workspace, completion):
    cli.add_command(command)


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
