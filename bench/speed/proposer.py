"""The scripted proposer as an endpoint of Chat Completions: prints its port, and serves until its input is closed.

Usage: python proposer.py [SECONDS_PER_TURN]
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from task import FIELD, next_line

MODEL = "scripted"
EVIDENCE = re.compile(r'<file name="evidence\.md">(.*?)</file>', re.DOTALL)


def manifest(question: str) -> str:
    """Return the proposal for a question. An edit adds a line, so that the text of the parent need not be known."""
    evidence = "".join(EVIDENCE.findall(question))
    line = next_line(re.findall(r"missing rule: r\d+", evidence))
    edit = {"operation": "append", "find": "", "text": line}
    return json.dumps({"proposals": [{"proposed_payload": {}, "edits": {FIELD: [edit]}}]})


class Handler(BaseHTTPRequestHandler):
    """Answers with the manifest of the scripted proposer."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    seconds = 0.0

    def do_GET(self) -> None:
        """List the model."""
        self.reply({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "benchmark"}]})

    def do_POST(self) -> None:
        """Answer a question."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.seconds:
            time.sleep(self.seconds)
        text = manifest("\n".join(str(message["content"]) for message in body["messages"]))
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        self.reply({"model": MODEL, "object": "chat.completion", "choices": [choice], "usage": usage})

    def reply(self, document: dict[str, Any]) -> None:
        """Send a JSON document."""
        payload = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, *args: object) -> None:
        """Log nothing."""


def main() -> None:
    """Serve until standard input is closed."""
    Handler.seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
