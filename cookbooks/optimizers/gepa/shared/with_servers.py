"""Serves what a config needs for as long as a command runs, and ends it whatever happens.

with_servers.py --config configs/banking77.toml --cookbook banking77 COMMAND ...
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from shared.launch import run_server

COOKBOOKS = Path(__file__).resolve().parent.parent


def main() -> int:
    """Run the command while both servers are up, and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--config", type=Path, required=True, help="names the addresses")
    parser.add_argument("--cookbook", metavar="NAME", required=True, help="a cookbook, such as banking77")
    parser.add_argument("--python", default=sys.executable, help="a Python that has what the container needs")
    parser.add_argument("--data", metavar="DIR", help="handed to the container")
    parser.add_argument("--policy", metavar="NAME", help="handed to the container")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what needs the servers, with its arguments")
    args = parser.parse_args()
    if not args.command:
        parser.error("name the command that needs the servers")
    # SIGTERM raises an exception, so that every started process is ended on the way out.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    signal.signal(signal.SIGHUP, lambda number, _: sys.exit(128 + number))
    config = tomllib.loads(args.config.read_text(encoding="utf-8"))
    container_port, reflector_port = port_of(config["container"]["url"]), port_of(config["proposer"]["base_url"])
    options = [*(["--data", args.data] if args.data else []), *(["--policy", args.policy] if args.policy else [])]
    with (
        run_server(args.python, *container_of(args.cookbook), *options, "--port", container_port),
        run_server(args.python, *reflector_of(args.cookbook), "--port", reflector_port),
    ):
        return run(args.command)


def container_of(cookbook: str) -> list[str]:
    """Return the script of a cookbook's container."""
    return [str(COOKBOOKS / f"{cookbook}_container" / "container.py")]


def reflector_of(cookbook: str) -> list[str]:
    """Return the script of a cookbook's reflector, with its options."""
    return [str(COOKBOOKS / "shared" / "reflector.py"), "--cookbook", cookbook]


def port_of(url: str) -> str:
    """Return the port of a loopback address."""
    parts = urlsplit(url)
    if parts.hostname != "127.0.0.1" or parts.port is None:
        raise RuntimeError(f"{url} is no address like http://127.0.0.1:9100")
    return str(parts.port)


def run(command: list[str]) -> int:
    """Run a command in this terminal. The command itself handles Ctrl-C."""
    with subprocess.Popen(command) as process:  # noqa: S603 (the user's own command)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            code = process.wait()
        except BaseException:
            process.terminate()
            raise
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    try:
        code = main()
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        code = 1
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
