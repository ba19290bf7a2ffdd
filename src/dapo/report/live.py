"""The page on localhost, following a run: GET / is the page, /data.json what is new, /rollouts the sample anew."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseServer
from typing import Any

from dapo.errors import UserError
from dapo.report.data import report_data
from dapo.report.page import as_json, packed, render
from dapo.report.rollouts import sample

HOST = "127.0.0.1"
FRESH_S = 2.0  # a page that asks more often is given what stands
FOLLOWED = (
    *("metrics.jsonl", "checks.jsonl", "alerts.jsonl", "profile.jsonl", "manifest.json"),
    *("eval", "credit", "rollouts", "tokens"),
)
Stamp = tuple[tuple[int, int], ...]


class Source:
    """What is served of some runs; each part is made when it is asked for, and anew only when the runs have changed.

    So following a run costs the machine it trains on next to nothing between two steps.
    """

    def __init__(self, paths: Sequence[Path], budget: int) -> None:
        self._paths, self._budget = list(paths), budget
        self._made: dict[str, tuple[float, Stamp, bytes]] = {}
        self._lock = threading.Lock()

    def get(self, path: str) -> tuple[bytes, str] | None:
        """(content, content type) of a path; None where there is nothing."""
        parts: dict[str, tuple[Callable[[], str], str]] = {
            "/": (self._page, "text/html"),
            "/data.json": (lambda: as_json({**report_data(self._paths), "live": True}), "application/json"),
            "/rollouts": (self._rollouts, "text/plain"),
        }
        if path not in parts:
            return None
        make, kind = parts[path]
        with self._lock:
            made = self._made.get(path)
            if made is None or (time.monotonic() - made[0] > FRESH_S and made[1] != self._stamp()):
                stamp = self._stamp()  # before reading: what is written meanwhile is read the next time
                content = make().encode("utf-8")
                made = self._made[path] = (time.monotonic(), stamp, content)
        return made[2], f"{kind}; charset=utf-8"

    def _stamp(self) -> Stamp:
        """Times and sizes of what is followed. A file that is written into a folder changes the folder's time."""
        return tuple(_time_and_size(path / name) for path in self._paths for name in FOLLOWED)

    def _page(self) -> str:
        return render(report_data(self._paths), self._rollouts(), live=True)

    def _rollouts(self) -> str:
        return packed(rollout_samples(self._paths, self._budget))


def _time_and_size(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


def rollout_samples(paths: Sequence[Path], budget: int) -> list[dict[str, Any]]:
    """The sample of each run; they share the budget."""
    from dapo.report.read import Files

    found = []
    for path in paths:
        files = Files(path)
        found.append(sample(files, budget // len(paths)) | {"notes": files.notes})
    return found


def port_of(one: BaseServer) -> int:
    """The port that a server has."""
    address = one.server_address
    return int(address[1]) if isinstance(address, tuple) else 0


def server(source: Source, port: int) -> ThreadingHTTPServer:
    """A server on 127.0.0.1 that has its port, not yet serving.

    Args:
        source: of the content.
        port: 0 takes a free one.

    Raises:
        UserError: the port can't be had.
    """

    class Handler(BaseHTTPRequestHandler):
        """GET alone, and only for who calls the server by a local name: a page elsewhere can't rebind its own to it."""

        def do_GET(self) -> None:
            """Serves a path."""
            own = port_of(self.server)
            if self.headers.get("Host") not in (f"{HOST}:{own}", f"localhost:{own}"):
                self.send_error(HTTPStatus.FORBIDDEN, "ask for 127.0.0.1 or localhost")
                return
            found = source.get(self.path.partition("?")[0])
            if found is None:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            self.send_response(HTTPStatus.OK)
            headers = {
                "Content-Type": found[1],
                "Content-Length": str(len(found[0])),
                "Cache-Control": "no-store",
                "X-Content-Type-Options": "nosniff",
                "X-Frame-Options": "DENY",
                "Referrer-Policy": "no-referrer",
            }
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                self.wfile.write(found[0])
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def log_message(self, format: str, *arguments: object) -> None:
            """Says nothing: the terminal belongs to whoever started it."""

    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--port {port}: can't be had: {reason}; name another, or none for a free one") from None
