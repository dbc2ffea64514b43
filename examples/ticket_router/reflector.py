"""An offline reflector behind an OpenAI-compatible address. It is no language model.

It stands in for the model of `[proposer]` so that the example needs no key. It reads the brief that a model would be
sent, and nothing else: the parent's prompt, and how its tickets were routed. From that it improves the guidance lines
by plain means. It knows no ticket by heart, sees no held-out row, and answers equal requests equally.
"""

from __future__ import annotations

import argparse
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ideas import Brief, Row, proposals
from servers import end_with_stdin, say_ready

Json = dict[str, Any]

MODEL = "word-rules-no-language-model"
SCHEMA_VERSION = "gepa_workspace_proposal_v3"


def read_brief(text: str) -> Brief:
    """Read what the optimizer asks: how many proposals, the parents' texts, and the evidence."""
    files = dict(re.findall(r'<file name="([^"]+)">\n(.*?)\n</file>', text, flags=re.DOTALL))
    asked = re.search(r"Write (\d+) proposals?", text)
    own = files.get("parent.md", "").partition("# Their common ancestor")[0]
    parents = re.findall(r"## Field `(\w+)`\n\n~~~~~~\n(.*?)\n~~~~~~", own, flags=re.DOTALL)
    tried = re.findall(r"^\+(?!\+)(.*)$", files.get("rejected.md", ""), flags=re.MULTILINE)
    kind = re.search(r'`proposal_type` = "(\w+)"', text)
    return Brief(
        field=parents[0][0] if parents else "",
        parents=[prompt for _, prompt in parents],
        count=int(asked[1]) if asked else 1,
        kind=kind[1] if kind else "frontier_variation",
        rows=read_rows(files.get("evidence.md", "")),
        tried="\n".join(tried),
    )


def read_rows(evidence: str) -> list[Row]:
    """Read the rows whose feedback says where the ticket went and where it belongs."""
    rows = []
    for part in re.split(r"^## Row ", evidence, flags=re.MULTILINE)[1:]:
        shown = re.search(r"^Input: (\{.*\})$", part, flags=re.MULTILINE)
        text = json.loads(shown[1]).get("text") if shown else None
        wrong = re.search(r"Wrong: the ticket was routed to (\w+), but it belongs to (\w+)\.", part)
        right = re.search(r"Right: the ticket was routed to (\w+)\.", part)
        if text and wrong:
            rows.append(Row(part.split()[0], text, predicted=wrong[1], expected=wrong[2]))
        elif text and right:
            rows.append(Row(part.split()[0], text, predicted=right[1], expected=right[1]))
    return rows


def manifest(brief: Brief) -> Json:
    """Return the answer to a brief, in the shape that the optimizer expects."""
    lost = [row for row in brief.rows if row.is_lost]
    return {
        "schema_version": SCHEMA_VERSION,
        "critique": f"{len(lost)} of {len(brief.rows)} tickets went to a wrong queue.",
        "evidence": {
            "reviewed_files": ["parent.md", "evidence.md", "rejected.md"],
            "candidate_comparison": [],
            "failure_patterns": sorted({f"{row.expected} is taken for {row.predicted}" for row in lost}),
            "winning_patterns": sorted({f"{row.expected} is found" for row in brief.rows if not row.is_lost}),
            "example_ids_used": [row.row_id for row in lost],
        },
        "rationale": "Words of lost tickets go to the line of their queue, where they tell it from the others.",
        "proposals": [
            {
                "proposal_type": brief.kind,
                "parent_candidate_ids": [],
                "rationale": idea,
                "proposed_payload": {brief.field: prompt},
            }
            for idea, prompt in proposals(brief)
        ],
    }


def text_of(content: object) -> str:
    """Return the text of a message's content: it is a text, or a list of parts that hold one."""
    if isinstance(content, list):
        return "\n".join(text_of(part.get("text") or part.get("content")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def chat_reply(model: str, asked: str, answer: str) -> Json:
    """Return an answer as a chat completion. Its tokens are counted in words."""
    prompt, completion = len(asked.split()), len(answer.split())
    message = {"role": "assistant", "content": answer}
    return {
        "id": "chatcmpl-offline",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion},
    }


def responses_reply(model: str, asked: str, answer: str) -> Json:
    """Return an answer as the Responses API has it. Its tokens are counted in words."""
    prompt, completion = len(asked.split()), len(answer.split())
    content = [{"type": "output_text", "text": answer, "annotations": []}]
    return {
        "id": "resp-offline",
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "model": model,
        "output": [
            {"type": "message", "id": "msg-offline", "role": "assistant", "status": "completed", "content": content}
        ],
        "usage": {"input_tokens": prompt, "output_tokens": completion, "total_tokens": prompt + completion},
    }


class Handler(BaseHTTPRequestHandler):
    """Answers both families of the API."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    log_file: Path | None = None

    def do_GET(self) -> None:
        """Say that the server is there, and which model it has."""
        if self.path == "/health":
            self.reply(200, {"status": "ok"})
        elif self.path == "/v1/models":
            self.reply(200, {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "offline"}]})
        else:
            self.refuse(404, f"there is no {self.path}")

    def do_POST(self) -> None:
        """Answer a brief with a manifest."""
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
            model = body["model"]
        except (ValueError, KeyError, TypeError):
            self.refuse(400, "the body is no JSON object that names a model")
            return
        if model != MODEL:
            self.refuse(404, f"there is no model {model!r}; this server has {MODEL!r}")
        elif self.path == "/v1/chat/completions":
            asked = "\n".join(text_of(message.get("content")) for message in body.get("messages") or [])
            self.reply(200, chat_reply(model, asked, self.answer(asked)))
        elif self.path == "/v1/responses":
            asked = "\n".join([text_of(body.get("instructions")), text_of(body.get("input"))])
            self.reply(200, responses_reply(model, asked, self.answer(asked)))
        else:
            self.refuse(404, f"there is no {self.path}")

    def answer(self, asked: str) -> str:
        """Return the manifest for a question, and write the turn down where that is asked for."""
        brief = read_brief(asked)
        answer = manifest(brief)
        if self.log_file is not None:
            entry = {"rows": [row.row_id for row in brief.rows], "proposals": len(answer["proposals"])}
            with self.log_file.open("a", encoding="utf-8") as log:
                log.write(json.dumps(entry) + "\n")
        return json.dumps(answer)

    def reply(self, status: int, document: Json) -> None:
        """Send a document."""
        payload = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def refuse(self, status: int, message: str) -> None:
        """Send an error in the shape that such servers use."""
        self.reply(status, {"error": {"message": message, "type": "invalid_request_error"}})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name of the base class)
        """Keep the terminal quiet."""


def main() -> None:
    """Serve the reflector on loopback until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=9101, help="0 takes a free port")
    parser.add_argument("--log", type=Path, metavar="FILE", help="append a line for each turn")
    parser.add_argument("--watch-stdin", action="store_true", help="end when standard input is closed")
    args = parser.parse_args()
    Handler.log_file = args.log
    server = ThreadingHTTPServer(("127.0.0.1", args.port), Handler)
    if args.watch_stdin:
        end_with_stdin()
    say_ready("reflector", f"http://127.0.0.1:{server.server_port}/v1")
    server.serve_forever()


if __name__ == "__main__":
    main()
