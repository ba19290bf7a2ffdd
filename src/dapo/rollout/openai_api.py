"""What goes to and comes from a server that speaks OpenAI's HTTP interface: addresses, keys, answers, refusals."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dapo.errors import UserError

if TYPE_CHECKING:
    from httpx2 import Client

KEY_VARIABLE = "OPENAI_API_KEY"  # where messages say that the key belongs
CONNECT_SECONDS = 30.0  # until a server that takes no connection counts as away
MAX_TOKENS = 2**24  # a count above is not believed


class Failure(Exception):
    """A try that failed in a way that may pass. `wait`: seconds until the next, where the server says."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server gave. tokens: None where it does not say."""

    text: str
    reason: str
    tokens: int | None


def clean_url(url: str) -> str:
    """The address that routes are added to. Raises UserError, without the address: it may hold a key.

    >>> clean_url("http://localhost:8000/v1/chat/completions")
    'http://localhost:8000/v1'
    """
    url = url.strip()
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or not url.isprintable() or set(url) & set(" @?#"):
        raise UserError(
            "--endpoint wants an http or https address like http://localhost:8000/v1, without user, password, ? "
            f"or #; a key belongs in the environment variable {KEY_VARIABLE}"
        )
    for route in ("/chat/completions", "/completions"):
        url = url.rstrip("/").removesuffix(route)
    return url.rstrip("/")


def clean_key(key: str | None, variable: str = KEY_VARIABLE) -> str:
    """The key without the space around it; "" for none. Raises UserError where no header can hold it."""
    key = (key or "").strip()
    if not (key.isascii() and key.isprintable()) or set(key) & set(' "\\'):
        raise UserError(f"the key in the environment variable {variable} has characters that no key has")
    return key


def make_client(url: str, key: str, concurrency: int, timeout_s: float) -> Client:
    """A client with a connection for every thread; of the environment's proxies, none for this machine."""
    host = urlsplit(url).hostname or ""
    local = host in ("localhost", "::1") or host.startswith("127.")
    try:
        import httpx2

        httpx2.URL(url)
        return httpx2.Client(
            headers={"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {}),
            timeout=httpx2.Timeout(timeout_s, connect=min(timeout_s, CONNECT_SECONDS), pool=None),
            limits=httpx2.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
            mounts={f"all://[{host}]" if ":" in host else f"all://{host}": None} if local else None,
            follow_redirects=False,
        )
    except Exception as error:  # its text may hold the password of a proxy
        mend = "mend it, or what the environment says of HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE"
        raise UserError(f"--endpoint: no HTTP client for this address ({type(error).__name__}); {mend}") from None


def read_answer(body: bytes, *, chat: bool) -> Answer:
    """The first choice. What a server calls reasoning is no part of the text. Raises Failure."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise Failure(f"the answer is no JSON: {server_message(body)}") from None
    choices = data.get("choices") if isinstance(data, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    holder = choice.get("message") if chat and isinstance(choice, dict) else choice
    name = "content" if chat else "text"
    text = holder.get(name) or "" if isinstance(holder, dict) and (chat or name in holder) else None
    if not isinstance(choice, dict) or not isinstance(text, str):
        raise Failure(f"the answer has no choices with a {name}: {server_message(body)}")
    usage = data.get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    believed = type(count) is int and (0 < count <= MAX_TOKENS or (count == 0 and not text))
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return Answer(text, str(choice.get("finish_reason")), count if believed else None)


def server_message(body: bytes) -> str:
    """What a server says about an error, wherever it puts it."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return body.decode(errors="replace")
    for name in ("error", "message", "detail"):
        if isinstance(said, dict) and said.get(name):
            said = said[name]
    return said if isinstance(said, str) else json.dumps(said)


def retry_after(header: str) -> float | None:
    """Seconds, 0 or more, of a Retry-After header: a number or a date. None for anything else."""
    try:
        if header.replace(".", "", 1).isdigit():
            return float(header)
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
