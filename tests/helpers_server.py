"""A server that speaks as much of OpenAI's chat interface as a test needs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[dict[str, Any]], str | int]


@contextmanager
def serving(reply: Reply) -> Iterator[str]:
    """The address of a server that answers by rule.

    Args:
        reply: what it says to a request's body (with `path` and `key`, its Authorization), or the status of an error.
    """

    class Server(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            said = reply(body | {"path": self.path, "key": self.headers.get("Authorization")})
            if isinstance(said, int):
                self.send_error(said)
                return
            message = {"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
            data = json.dumps({"choices": [message], "usage": {"completion_tokens": 5}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *words: Any) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{made.server_port}/v1"
        finally:
            made.shutdown()
