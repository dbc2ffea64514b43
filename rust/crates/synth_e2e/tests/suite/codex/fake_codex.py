"""An app-server of a few lines, as a sandboxed codex would answer; its model is another one than was asked for.

The file that is named first on its command line may redefine the functions of `HOOKS`. Each gets the result that is
about to be sent, which it may change, and the parameters of the request.
"""

import json
import sys
from pathlib import Path
from typing import Any

Json = dict[str, Any]

HOOKS = ("probe", "thread", "turn", "begun")


def probe(result: Json, params: Json) -> None:
    """Change what a command of the check gives."""


def thread(result: Json, params: Json) -> None:
    """Change how a thread is opened."""


def turn(result: Json, params: Json) -> None:
    """Change how a turn is acknowledged; a result with `error` is a refusal with that message."""


def begun(result: Json, params: Json) -> None:
    """Do something once a turn was acknowledged."""


def send(message: Json) -> None:
    """Write a message."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def answer(method: str, params: Json, number: int) -> Json:
    """Return the result of a request."""
    if method == "initialize":
        return {"userAgent": "fake/9.9.9 (x)"}
    if method == "command/exec":
        # What a sandboxed command would do with the probe: it writes the file inside and says that it is done.
        Path("inside").write_text("x")
        result = {"exitCode": 0, "stdout": "probed\n", "stderr": ""}
        probe(result, params)
        return result
    if method == "thread/start":
        result = {
            "thread": {"id": f"t{number}"},
            "model": params.get("model", "default-model"),
            "modelProvider": params["modelProvider"],
            "cwd": params["cwd"],
            "approvalPolicy": "never",
            "sandbox": {"type": "workspaceWrite", "writableRoots": [], "networkAccess": False},
            "activePermissionProfile": {"id": "proposer"},
            "instructionSources": [],
        }
        thread(result, params)
        return result
    if method == "turn/start":
        result = {"turn": {"id": "u1"}}
        turn(result, params)
        return result
    if method == "turn/interrupt":
        ended = {"id": params["turnId"], "status": "interrupted", "error": None}
        send({"method": "turn/completed", "params": {"threadId": params["threadId"], "turn": ended}})
    return {}


def reroute(params: Json) -> None:
    """Ask for an approval, which must be declined, and say that another model answers."""
    named = params["threadId"]
    send({"id": 0, "method": "item/commandExecution/requestApproval", "params": {"threadId": named}})
    declined = json.loads(sys.stdin.readline())
    if declined != {"result": {"decision": "decline"}, "id": 0}:
        raise SystemExit(f"not declined: {declined}")
    models = {"fromModel": params.get("model"), "toModel": "other-model", "reason": "highRiskCyberActivity"}
    send({"method": "model/rerouted", "params": {"threadId": named, "turnId": "u1", **models}})


def main() -> None:
    """Answer until the input ends."""
    changes: Json = {}
    exec(Path(sys.argv[1]).read_text(), changes)  # noqa: S102 (written by the test)
    globals().update({name: changes[name] for name in HOOKS if name in changes})
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        method, params = message["method"], message.get("params", {})
        result = answer(method, params, message["id"])
        if "error" in result:
            send({"id": message["id"], "error": {"message": result["error"]}})
            continue
        send({"id": message["id"], "result": result})
        if method == "turn/start":
            begun(result, params)
            reroute(params)


main()
