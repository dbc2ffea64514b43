"""The offline reflector: it stands in for the model of a proposer, behind an OpenAI-compatible address.

It is no language model. It reads the brief that a model would be sent, and nothing else, and improves the prompt by the
plain means of a cookbook's `reflect.py`. It knows no row by heart, sees no held-out row, and answers equal requests
equally. It exists so that everyone can run the whole product without a key.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from shared.brief import MERGE, Brief, NoBriefError, Proposal, find_brief_text, read_brief
from shared.serving import append_log, exit_when_stdin_closes, listening_options, print_ready, require_free_port

Json = dict[str, Any]
Strategy = Callable[[Brief], list[Proposal]]

COOKBOOKS = Path(__file__).resolve().parent.parent
MODEL = "offline-reflector"
NAME = "offline reflector (no language model)"
SCHEMA_VERSION = "gepa_workspace_proposal_v3"


def manifest(brief: Brief, proposals: list[Proposal]) -> Json:
    """Return the answer to a brief, in the shape that the optimizer expects."""
    scores = [row.score for row in brief.rows if row.score is not None]
    best = max(scores, default=0.0)
    lost = [row for row in brief.rows if row.score is None or row.score < best]
    return {
        "schema_version": SCHEMA_VERSION,
        "critique": f"{len(lost)} of {len(brief.rows)} rows score less than the best of them.",
        "evidence": {
            "reviewed_files": ["parent.md", "evidence.md", "rejected.md"],
            "candidate_comparison": [],
            "failure_patterns": sorted({text for row in lost for text in row.feedback[:1]})[:8],
            "winning_patterns": [],
            "example_ids_used": [row.row_id for row in lost],
        },
        "rationale": "Written by fixed rules from the feedback on the rows above; no language model was asked.",
        "proposals": [
            {
                "proposal_type": "frontier_merge" if brief.operation == MERGE else "frontier_variation",
                "parent_candidate_ids": brief.parent_ids,
                "rationale": proposal.rationale,
                "proposed_payload": proposal.fields,
            }
            for proposal in proposals
        ],
    }


def chat_reply(asked: str, answer: str) -> Json:
    """Return an answer as a chat completion. Its tokens are counted in words."""
    prompt, completion = len(asked.split()), len(answer.split())
    message = {"role": "assistant", "content": answer}
    return {
        "id": "chatcmpl-offline",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion},
    }


def responses_reply(asked: str, answer: str) -> Json:
    """Return an answer in the shape of the Responses API. Its tokens are counted in words."""
    prompt, completion = len(asked.split()), len(answer.split())
    content = [{"type": "output_text", "text": answer, "annotations": []}]
    message = {"type": "message", "id": "msg-offline", "role": "assistant", "status": "completed", "content": content}
    usage: Json = {"input_tokens": prompt, "input_tokens_details": {"cached_tokens": 0}}
    usage |= {"output_tokens": completion, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": "resp-offline",
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "model": MODEL,
        "output": [message],
        "usage": usage | {"total_tokens": prompt + completion},
    }


def chat_events(reply: Json) -> list[Json]:
    """Return a chat completion as stream chunks."""
    choice = {"index": 0, "delta": reply["choices"][0]["message"], "finish_reason": "stop"}
    return [reply | {"object": "chat.completion.chunk", "choices": [choice]}]


def responses_events(reply: Json) -> list[Json]:
    """Return a response as stream events, as codex reads them."""
    message = reply["output"][0]
    opened = message | {"status": "in_progress", "content": []}
    delta = {"item_id": message["id"], "output_index": 0, "content_index": 0, "delta": message["content"][0]["text"]}
    return [
        {"type": "response.created", "response": {"id": reply["id"], "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": opened},
        {"type": "response.output_text.delta", **delta},
        {"type": "response.output_item.done", "output_index": 0, "item": message},
        {"type": "response.completed", "response": reply},
    ]


class Handler(BaseHTTPRequestHandler):
    """Answers both families of the API, whole or streamed."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    propose: Strategy
    log_file: Path | None = None

    def do_GET(self) -> None:
        """Report that the server is up, and which model it has."""
        if self.path == "/health":
            self.reply(200, {"status": "ok", "is": NAME})
        elif self.path.partition("?")[0] == "/v1/models":
            self.reply(200, {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": NAME}]})
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
        is_chat = self.path == "/v1/chat/completions"
        if not is_chat and self.path != "/v1/responses":
            self.refuse(404, f"there is no {self.path}")
        elif model != MODEL:
            self.refuse(404, f"there is no model {model!r}; this server has {MODEL!r}")
        else:
            try:
                asked = find_brief_text(body)
                answer = self.answer(asked)
            except NoBriefError as error:
                self.refuse(400, str(error))
                return
            except Exception as error:
                self.refuse(500, f"the reflector failed: {type(error).__name__}: {error}")
                return
            reply = chat_reply(asked, answer) if is_chat else responses_reply(asked, answer)
            if not body.get("stream"):
                self.reply(200, reply)
            else:
                self.stream(chat_events(reply) if is_chat else responses_events(reply), ends=is_chat)

    def answer(self, asked: str) -> str:
        """Return the manifest for a question, and log the turn if a log is configured."""
        brief = read_brief(asked)
        proposals = type(self).propose(brief)[: brief.proposal_count]
        rows = [row.row_id for row in brief.rows]
        append_log(self.log_file, {"rows": rows, "proposals": len(proposals), "operation": brief.operation})
        return json.dumps(manifest(brief, proposals))

    def stream(self, events: list[Json], *, ends: bool) -> None:
        """Send stream events; chat completions end with an end marker."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for event in events:
            name = f"event: {event['type']}\n" if "type" in event else ""
            self.wfile.write(f"{name}data: {json.dumps(event)}\n\n".encode())
        if ends:
            self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def reply(self, status: int, document: Json) -> None:
        """Send a JSON document."""
        payload = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def refuse(self, status: int, message: str) -> None:
        """Send an error in the shape of the OpenAI API."""
        self.reply(status, {"error": {"message": message, "type": "invalid_request_error"}})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name of the base class)
        """Log nothing."""


def serve_reflector(propose: Strategy, args: argparse.Namespace) -> None:
    """Serve a strategy on loopback until the process ends."""
    handler = type("StrategyHandler", (Handler,), {"propose": staticmethod(propose), "log_file": args.log})
    with require_free_port(args.port):
        server = ThreadingHTTPServer(("127.0.0.1", args.port), handler)
    if args.watch_stdin:
        exit_when_stdin_closes()
    print_ready(NAME, f"http://127.0.0.1:{server.server_port}/v1")
    server.serve_forever()


def main() -> None:
    """Serve the strategy of a cookbook."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--cookbook", required=True, metavar="NAME", help="such as banking77")
    listening_options(parser)
    args = parser.parse_args()
    known = sorted(path.parent.name.removesuffix("_container") for path in COOKBOOKS.glob("*_container/reflect.py"))
    if args.cookbook not in known:
        parser.error(f"there is no cookbook {args.cookbook!r}; there are {', '.join(known)}")
    serve_reflector(importlib.import_module(f"{args.cookbook}_container.reflect").propose, args)


if __name__ == "__main__":
    main()
