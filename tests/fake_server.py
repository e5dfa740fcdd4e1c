"""An OpenAI-compatible server that answers by rule."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class FakeServer:
    """Answers 7, or with its seed when it samples; cuts a prompt that says "long"; says null to one with "null"."""

    url: str
    asked: list[dict[str, Any]] = field(default_factory=list)
    broken: bool = False

    def reply(self, payload: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(payload)
        prompt = payload["prompt"] if "prompt" in payload else payload["messages"][-1]["content"]
        said: str | None = f"\\boxed{{{payload['seed'] if payload['temperature'] else 7}}}"
        finish = "stop"
        if "long" in prompt:
            said, finish = "and so on", "length"
        if "null" in prompt:
            said = None
        choice = {"index": 0, "text": said, "message": {"content": said}, "finish_reason": finish}
        return {"choices": [choice], "usage": {"completion_tokens": 5}}


@contextmanager
def serving() -> Iterator[FakeServer]:
    """A server at a free port, for as long as the context lasts."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(fake.reply(payload)).encode()
            self.send_response(500 if fake.broken else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake = FakeServer(f"http://127.0.0.1:{httpd.server_port}/v1")
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()
