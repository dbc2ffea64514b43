"""`synth-optimizers completion`: the script that makes a shell complete commands, options and runs."""

from __future__ import annotations

import click

from synth_optimizers.cli.output import write_text

__all__ = ["completion"]

WHERE = {
    "bash": 'eval "$(synth-optimizers completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(synth-optimizers completion zsh)"   in ~/.zshrc',
    "fish": "synth-optimizers completion fish > ~/.config/fish/completions/synth-optimizers.fish",
}


@click.command(epilog="\b\n" + "\n".join(WHERE.values()))
@click.argument("shell", type=click.Choice(sorted(WHERE)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Write the completion script of a shell."""
    from click.shell_completion import get_completion_class

    root = context.find_root()
    script = get_completion_class(shell)
    if script is None:
        raise click.UsageError(f"there is no completion for {shell}")
    write_text(script(root.command, {}, "synth-optimizers", "_SYNTH_OPTIMIZERS_COMPLETE").source())
