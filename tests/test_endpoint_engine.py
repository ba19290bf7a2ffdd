"""The endpoint engine against a real HTTP server on this machine, which answers what each test tells it."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

import dapo.rollout.endpoint_engine as module
from dapo.config import load_config
from dapo.errors import EngineError, UserError
from dapo.flight import Flight
from dapo.grading import GroupGrader
from dapo.reward import Scorer
from dapo.rng import derive_seed
from dapo.rollout.endpoint_engine import EndpointEngine
from dapo.rollout.openai_api import KEY_VARIABLE, clean_url, retry_after
from dapo.types import Finish, FinishedDraw, Prompt, Response
from helpers_engine import Responses, params

KEY = "sk-Zebra+Quagga/4711"


@dataclass(frozen=True)
class Asked:
    """A request as the server saw it. number: how many came before it."""

    number: int
    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def words(self) -> str:
        """The problem."""
        return self.body["prompt"] if "prompt" in self.body else self.body["messages"][-1]["content"]


@dataclass(frozen=True)
class Reply:
    """An answer: JSON, or bytes as they are."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


def says(text: str | None, tokens: int | None = 7, finish: str | None = "stop", **message: Any) -> Reply:
    """A good answer, of both routes at once."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "text": text}
    usage = {} if tokens is None else {"usage": {"prompt_tokens": 3, "completion_tokens": tokens}}
    return Reply({"choices": [choice | {"finish_reason": finish}], **usage})


class Server(ThreadingHTTPServer):
    """Answers by `script`; where that gives None, never (until it is closed)."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: Callable[[Asked], Reply | None] = lambda asked: says(f"{asked.words}/{asked.body['seed']}")
        self.seen: list[Asked] = []
        self.lock, self.over = threading.Lock(), threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    wbufsize = 65536
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            asked = Asked(len(self.server.seen), self.path, dict(self.headers), body)
            self.server.seen.append(asked)
        reply = self.server.script(asked)
        if reply is None:
            self.server.over.wait(30)
            self.close_connection = True
            return
        data = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        self.send_response(reply.status)
        for name, value in {"Content-Length": str(len(data)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Silence."""


@pytest.fixture
def server() -> Iterator[Server]:
    """A server in a thread."""
    with Server() as made:
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.over.set()
        made.shutdown()


@pytest.fixture
def make(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., EndpointEngine]]:
    """Engines for the server, impatient ones, closed after the test. Certificates, 0.1 s a client, are not read."""
    monkeypatch.setattr(module, "BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr("httpcore2.default_ssl_context", lambda **_: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    made: list[EndpointEngine] = []

    def build(url: str = server.url, **settings: Any) -> EndpointEngine:
        made.append(EndpointEngine(url, "m", **settings))
        return made[-1]

    yield build
    for engine in made:
        engine.close()


def problem(words: str = "6*7?", *, chat: bool = True) -> Prompt:
    """A prompt, with messages or without."""
    messages = ({"role": "system", "content": "be brief"}, {"role": "user", "content": words})
    return Prompt(
        id=words,
        messages=messages if chat else None,
        text=f"<{words}>",
        answer="42",
        source="s",
        token_ids=np.asarray([1], np.int32),
    )


def wait_for(engine: EndpointEngine, count: int = 1) -> Responses:
    """Polls until this many draws are in."""
    done: list[FinishedDraw] = []
    while len(done) < count:
        done += engine.poll()
    assert len(done) == count == len({draw.draw for draw in done})
    return {draw.draw: draw.responses for draw in done}


def ask(engine: EndpointEngine, n: int = 1, **settings: Any) -> Response:
    """The last response of a draw of n."""
    engine.submit(0, problem(), params(n=n, **settings))
    return wait_for(engine)[0][-1]


def until(true: Callable[[], bool]) -> None:
    """Waits for the server."""
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize(("chat", "raw", "route"), [(True, False, "/chat"), (False, False, ""), (True, True, "")])
def test_a_request_and_its_response(server: Server, make: Any, chat: bool, raw: bool, route: str) -> None:
    """Messages go to the chat route, bare or raw prompts to the other; the fields are those, and no others."""
    engine = make(raw=raw, api_key=f" {KEY}\n")
    engine.submit(3, problem(chat=chat), params(20, n=2, temperature=0.6, top_p=0.9, seed=11))
    first, second = wait_for(engine)[3]
    seeds = [derive_seed(11, 3, g) % 2**31 for g in range(2)]
    words = "6*7?" if route else "<6*7?>"
    assert [first.text, second.text] == [f"{words}/{seed}" for seed in seeds]
    asked = next(a for a in server.seen if a.body["seed"] == seeds[0])
    given = {"messages": [dict(m) for m in problem().messages or ()]} if route else {"prompt": "<6*7?>"}
    rest = {"model": "m", "max_tokens": 20, "temperature": 0.6, "top_p": 0.9, "seed": seeds[0]}
    assert asked.body == given | rest
    assert (asked.path, asked.headers["Authorization"]) == (f"/v1{route}/completions", f"Bearer {KEY}")
    assert first.token_ids.tolist() == [-1] * 7
    assert (first.token_ids.dtype, first.engine_logprobs.dtype) == (np.int32, np.float32)
    assert first.generated.tolist() == [True] * 7
    assert np.isnan(first.engine_logprobs).all()
    assert (first.token_versions, first.finish, engine.estimated) == (((0, 7),), Finish.STOP, 0)
    with pytest.raises(EngineError, match="nothing in flight"):
        engine.poll()


def test_stop_greedy_and_no_key(server: Server, make: Any) -> None:
    """Stop strings and a key are sent where there are some; greedy is temperature 0."""
    ask(make(), temperature=0.0, stop=["\n", "END"])
    assert (server.seen[0].body["stop"], server.seen[0].body["temperature"]) == (["\n", "END"], 0.0)
    assert "Authorization" not in server.seen[0].headers


def test_seeds_are_of_the_seed_the_draw_and_g(server: Server, make: Any) -> None:
    """The same in another engine and order, all different from each other, 31 bits wide."""
    texts = []
    for order in ((0, 1, 2), (2, 0, 1)):
        engine = make()
        for draw in order:
            engine.submit(draw, problem(), params(n=4, seed=2**63 + 5))
        done = wait_for(engine, 3)
        texts.append([response.text for draw in range(3) for response in done[draw]])
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 12
    assert all(0 <= asked.body["seed"] < 2**31 for asked in server.seen)


def test_responses_stand_in_order_of_g_and_draws_in_order_of_completion(server: Server, make: Any) -> None:
    """Draw 0 answers last to first, after draw 1 did."""
    seeds = [derive_seed(5, 0, g) % 2**31 for g in range(3)]
    turns = [threading.Event() for _ in range(4)]
    turns[3].set()

    def script(asked: Asked) -> Reply:
        if asked.words == "slow":
            g = seeds.index(asked.body["seed"])
            turns[g + 1].wait(10)
            turns[g].set()
            return says(f"g{g}", tokens=g + 1)
        return says("quick")

    turns[3].clear()
    server.script = script
    engine = make()
    engine.submit(0, problem("slow"), params(n=3))
    engine.submit(1, problem("quick"), params(n=1))
    assert [draw.draw for draw in engine.poll()] == [1]
    turns[3].set()
    assert [(r.text, r.num_tokens) for r in wait_for(engine)[0]] == [("g0", 1), ("g1", 2), ("g2", 3)]


def test_concurrency_is_used_and_kept(server: Server, make: Any) -> None:
    """6 requests stand at the server at one time, never a 7th; 64 at once lose nothing."""
    now, most, gate, lock = 0, 0, threading.Barrier(6), threading.Lock()

    def script(asked: Asked) -> Reply:
        nonlocal now, most
        with lock:
            now, most = now + 1, max(most, now + 1)
        gate.wait(10)  # would break if fewer than 6 came
        with lock:
            now -= 1
        return says("x")

    server.script = script
    ask(make(concurrency=6), n=30)
    assert (most, len(server.seen)) == (6, 30)
    server.script = lambda asked: says(f"{asked.words}/{asked.body['seed']}")
    engine = make(concurrency=64)
    for draw in range(50):
        engine.submit(draw, problem(f"p{draw}"), params(n=1 + draw % 9))
    for draw, responses in wait_for(engine, 50).items():
        seeds = [derive_seed(5, draw, g) % 2**31 for g in range(1 + draw % 9)]
        assert [response.text for response in responses] == [f"p{draw}/{seed}" for seed in seeds]


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
def test_what_may_pass_is_tried_again(server: Server, make: Any, caplog: Any, status: int) -> None:
    """Twice bad, then good; each retry is one warning."""
    server.script = lambda asked: Reply({"error": "busy"}, status) if asked.number < 2 else says("good")
    assert ask(make()).text == "good"
    lines = [record.getMessage() for record in caplog.records if record.name == module.__name__]
    assert len(lines) == 2
    assert f"HTTP {status}: busy; asked again in 0.01 s (1 of 4)" in lines[0]
    assert "asked again in 0.02 s (2 of 4)" in lines[1]


def test_retry_after(server: Server, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number or a date, waited for up to a bound."""
    server.script = lambda a: says("x") if a.number else Reply({}, 429, {"Retry-After": "0.3"})
    start = time.monotonic()
    ask(make())
    assert time.monotonic() - start >= 0.3
    server.seen.clear()
    monkeypatch.setattr(module, "MAX_WAIT_SECONDS", 0.05)
    server.script = lambda a: says("x") if a.number else Reply({}, 503, {"Retry-After": "86400"})
    ask(make())
    assert 50 < (retry_after(formatdate(time.time() + 60, usegmt=True)) or 0) <= 60
    assert retry_after(formatdate(0, usegmt=True)) == 0
    assert [retry_after(text) for text in ("", "soon", "-3", "nan", "1.2.3", "²")] == [None] * 6


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(b"<html>hello</html>"), "no JSON: <html>hello"),
        (Reply(b"[" * 100_000), r"no JSON: \[\["),
        (Reply(b"\xff\xfe\xfa"), "no JSON"),
        (Reply([1]), "no choices"),
        (Reply({"choices": []}), "no choices"),
        (Reply({"choices": [3]}), "no choices"),
        (Reply({"choices": [{"message": {"content": 5}}]}), "no choices with a content"),
        (
            Reply({"error": {"message": f"over{chr(10)}loaded {KEY}"}}),
            r"no choices with a content: over loaded \*\*\* ",
        ),
        (Reply({"detail": "y" * 5000}, 502), r"HTTP 502: y{200,240}\.\.\. \(given up after 3 tries\)$"),
    ],
)
def test_an_answer_that_is_none(
    server: Server, make: Any, reply: Reply, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Tried again, then the draw is given up with one line; the engine goes on working."""
    server.script = lambda asked: reply
    engine = make(retries=2, api_key=KEY)
    assert ask(engine).finish is Finish.ABORT
    assert re.search(said, caplog.messages[-1])
    assert "\n" not in caplog.messages[-1]
    assert len(server.seen) == 3
    server.script = lambda asked: says("good")
    assert ask(engine).text == "good"


@pytest.mark.parametrize(
    ("status", "body", "parts"),
    [
        (400, {"error": {"message": "maximum context length is 4096"}}, ["context length", "eval.max_response_tokens"]),
        (401, {"error": {"message": f"bad key {KEY}"}}, ["bad key ***", KEY_VARIABLE]),
        (403, {"message": "not you"}, ["not you", KEY_VARIABLE]),
        (404, {"detail": "Not Found"}, ["HTTP 404: Not Found", "model name 'm'", "/v1"]),
        (422, {"detail": [{"loc": ["body", "seed"], "msg": "no\nint"}]}, ['"seed"', "mend"]),
        (308, {}, ["http://elsewhere/", "redirects are not followed"]),
    ],
)
def test_a_refusal_is_the_users(server: Server, make: Any, status: int, body: Any, parts: list[str]) -> None:
    """At once, in one line that has the server's words, the address and the mend, and not the key."""
    server.script = lambda asked: Reply(body, status, {"Location": "http://elsewhere/"} if status == 308 else {})
    with pytest.raises(UserError) as caught:
        ask(make(api_key=KEY))
    message = str(caught.value)
    assert all(part in message for part in [*parts, server.url]), message
    assert "\n" not in message
    assert "Zebra" not in message
    assert len(server.seen) == 1


def test_the_key_is_nowhere(server: Server, make: Any, caplog: Any) -> None:
    """Neither in logs, of the HTTP library's down to debug, nor in a repr."""
    caplog.set_level(logging.DEBUG)
    server.script = lambda a: says("x", None, KEY) if a.number else Reply({"error": f"{'z' * 235} {KEY}"}, 500)
    engine = make(api_key=KEY)
    ask(engine)
    assert [record for record in caplog.records if record.name.startswith("httpcore2")]
    assert "finish_reason '***'" in caplog.text
    shown = caplog.text + repr(engine) + str(engine._client.headers)
    assert not [part for part in ("Zebra", "sk-", "4711") if part in shown]
    for bad in ("a\nb", "a b", "clé"):
        with pytest.raises(UserError, match=KEY_VARIABLE) as caught:
            make(api_key=bad)
        assert bad not in str(caught.value)


def test_nobody_there(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The first connection refused is the user's to mend; after an answer it may pass."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        engine = make(url, retries=1)
        with pytest.raises(UserError, match=f"no server answers at {url} .--endpoint.; start it, or mend the address"):
            ask(engine)
        engine._reached.set()
        assert ask(engine).finish is Finish.ABORT
        assert re.search(r"no connection: .*given up after 2 tries", caplog.text)


def test_timeouts_and_cut_connections(server: Server, make: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A silent server, and one that hangs up: tried again, then the draw is given up."""
    server.script = lambda asked: says("x") if asked.number else None
    engine = make(timeout_s=0.5, retries=1)
    assert ask(engine).text == "x"
    server.script = lambda asked: None
    assert ask(engine).finish is Finish.ABORT
    assert re.search(r"draw 0: .*no answer within 0\.5 s \(given up after 2 tries\)", caplog.text)
    server.script = lambda asked: Reply(b"half", 200, {"Content-Length": "100", "Connection": "close"})
    assert ask(engine).finish is Finish.ABORT
    assert "RemoteProtocolError" in caplog.text


TEXTS = ["", "é漢\U0001f600\u2028\0", "\ufeffx", "a\ud800b\udfffc\ud83d\ude00", "x\ud83d", "long " * 400_000]


@pytest.mark.parametrize("chat", [True, False])
def test_any_text_comes_whole(server: Server, make: Any, chat: bool) -> None:
    """Only lone surrogates, which no file can hold, are replaced; pairs are the one character they spell."""
    server.script = lambda asked: says(TEXTS[int(asked.words.strip("<>").split("\ud800")[0])])
    engine = make()
    for draw in range(len(TEXTS)):
        engine.submit(draw, problem(f"{draw}\ud800é", chat=chat), params())
    done = wait_for(engine, len(TEXTS))
    expected = [*TEXTS[:3], "a\ufffdb\ufffdc\U0001f600", "x\ufffd", TEXTS[5]]
    assert [done[draw][0].text for draw in range(len(TEXTS))] == expected


def test_finishes_and_content_that_is_missing(server: Server, make: Any, caplog: Any) -> None:
    """Reasoning is not graded; kinds of end that are not known count as stops, with one warning for each."""
    server.script = lambda asked: says(None, 9, "length", reasoning_content="hmm", reasoning="hm")
    truncated = ask(make())
    assert (truncated.text, truncated.finish, truncated.num_tokens) == ("", Finish.LENGTH, 9)
    server.script = lambda asked: says("x", 1, "abort")
    assert ask(make()).finish is Finish.ABORT
    server.script = lambda asked: says("x", 1, ["content_filter", "tool_calls", None][asked.body["seed"] % 3])
    assert ask(make(), n=40).finish is Finish.STOP
    ends = [r.getMessage() for r in caplog.records if "finish_reason" in r.getMessage()]
    assert sorted(end.split("'")[1] for end in ends) == ["None", "content_filter", "tool_calls"]


@pytest.mark.parametrize("tokens", [None, -1, True, "12", 2.5, 10**15, 0])
def test_a_count_that_is_not_there_is_estimated(server: Server, make: Any, caplog: Any, tokens: Any) -> None:
    """6 bytes: 6 // 4 + 1 = 2 tokens; counted, and warned of once."""
    server.script = lambda asked: says("ééé", tokens)
    engine = make()
    assert ask(engine, n=3).num_tokens == 2
    assert engine.estimated == 3
    assert caplog.text.count("usage.completion_tokens") == 1


def test_no_tokens_at_all(server: Server, make: Any) -> None:
    """A count of 0 is believed of an empty text."""
    server.script = lambda asked: says("", 0)
    response = ask(make())
    assert (response.num_tokens, response.text, sum(count for _, count in response.token_versions)) == (0, "", 0)


def test_a_cancelled_draw_never_sees_its_old_answers(server: Server, make: Any) -> None:
    """Asked for again while the old requests run: all of its responses are new ones; waiting ones are not asked."""
    gate = threading.Event()

    def script(asked: Asked) -> Reply:
        if asked.words == "old":
            gate.wait(10)
        return says(asked.words, tokens=5)

    server.script = script
    engine = make(concurrency=3)
    engine.submit(8, problem("old"), params(n=20))
    until(lambda: len(server.seen) == 3)
    with pytest.raises(EngineError, match="draw 8 is already in flight"):
        engine.submit(8, problem("new"), params())
    old = engine._draws[8]
    assert engine.cancel([8, 99]) == 0
    engine.submit(8, problem("new"), params(n=4))
    for g in range(20):  # as from threads that were just about to
        engine._outcomes.put((old, g, module.Answer("old", "stop", 5)))
    assert engine.poll() == []  # after a second, for signals to be looked at
    gate.set()
    assert [response.text for response in wait_for(engine)[8]] == ["new"] * 4
    assert len(server.seen) == 7
    engine.submit(1, problem("new"), params(n=2))
    until(lambda: engine._outcomes.qsize() == 2)
    assert engine.cancel([1]) == 10
    with pytest.raises(EngineError, match="nothing in flight"):
        engine.poll()


def test_one_failure_leaves_the_rest(server: Server, make: Any) -> None:
    """Its draw is asked no further; what is finished comes first, then the error, once; the draw can come again."""
    server.script = lambda asked: Reply({"error": "too long"}, 400) if asked.words == "bad" else says("x")
    engine = make(concurrency=1)
    engine.submit(0, problem("bad"), params(n=9))
    engine.submit(1, problem("good"), params(n=3))
    until(lambda: engine._outcomes.qsize() == 4)
    assert [draw.draw for draw in engine.poll()] == [1]
    with pytest.raises(UserError, match="too long"):
        engine.poll()
    with pytest.raises(EngineError, match="nothing in flight"):
        engine.poll()
    assert [asked.words for asked in server.seen] == ["bad", "good", "good", "good"]
    engine.submit(0, problem("good"), params())
    assert len(wait_for(engine)[0]) == 1
    engine.submit(0, problem("bad"), params())
    until(lambda: engine._outcomes.qsize() == 1)
    assert engine.cancel([0]) == 0  # the error goes with its draw
    engine.submit(0, problem("good"), params())
    assert len(wait_for(engine)[0]) == 1


def test_a_fault_of_ours_is_told(
    server: Server, make: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No exception kills a thread in silence and leaves poll waiting for ever."""
    engine = make(concurrency=1)
    with monkeypatch.context() as patch:
        patch.setattr(module, "request_body", lambda *args, **kwargs: 1 / 0)
        assert ask(engine).finish is Finish.ABORT
    assert "ZeroDivisionError: division by zero" in caplog.text
    assert ask(engine).num_tokens == 7


def test_through_flight_and_grader_to_a_group(server: Server, make: Any) -> None:
    """A draw with one right and one wrong text, after one failure that Flight runs again."""
    right = derive_seed(5, 4, 0) % 2**31

    def script(asked: Asked) -> Reply:
        if asked.number == 0:
            return Reply(b"", 500)
        return says("6*7\nAnswer: 42" if asked.body["seed"] == right else "Answer: 41", tokens=11)

    server.script = script
    engine = make(retries=0)
    flight = Flight(engine, params(100, n=2), reruns=1)
    flight.submit(4, problem())
    finished: list[FinishedDraw] = []
    while flight:
        finished += flight.poll()
    assert (flight.failures, [draw.draw for draw in finished]) == (1, [4])
    config = load_config({"model.path": "m", "data.source": "d.jsonl"})
    group = GroupGrader(config, Scorer(config.reward).score, lambda ids: "decoded", [2]).group(finished[0], problem())
    assert [rollout.score.correct for rollout in group.rollouts] == [True, False]
    assert group.rollouts[0].text == "6*7\nAnswer: 42"
    assert (group.draw, group.num_correct, group.rollouts[0].response.num_tokens) == (4, 1, 11)


def test_flight_lets_the_users_mistake_through(server: Server, make: Any) -> None:
    """It is not run again; then the draws can be cancelled and the engine used."""
    server.script = lambda asked: Reply({"error": "no such model"}, 404) if asked.words == "bad" else says("x")
    engine = make()
    flight = Flight(engine, params(n=2), reruns=3)
    for draw in range(5):
        flight.submit(draw, problem("bad"))
    with pytest.raises(UserError, match="no such model"):
        flight.poll()
    flight.cancel()
    assert len(flight) == 0
    assert ask(engine).text == "x"


def test_closing(server: Server, make: Any) -> None:
    """Waits for no request, ends the threads that are free, is safe twice, and nothing works after it."""
    gate = threading.Event()
    server.script = lambda asked: None if asked.words == "hang" else (gate.wait(10) or True) and says("x")
    engine = make(concurrency=4)
    engine.submit(0, problem("hang"), params(n=2))
    until(lambda: len(server.seen) == 2)
    engine.submit(1, problem("x"), params(n=50))
    until(lambda: len(server.seen) == 4)
    start = time.monotonic()
    engine.close()
    engine.close()
    assert time.monotonic() - start < 1
    gate.set()
    until(lambda: sum(thread.is_alive() for thread in engine._threads) == 2)
    assert not engine._client.is_closed
    assert all(thread.daemon for thread in engine._threads)
    assert len(server.seen) == 4
    with pytest.raises(EngineError, match="nothing in flight"):
        engine.poll()
    with pytest.raises(EngineError, match="closed"):
        engine.submit(5, problem(), params())
    assert engine.cancel([0, 1]) == 0
    server.over.set()
    until(lambda: not any(thread.is_alive() for thread in engine._threads))
    assert engine._client.is_closed


def test_what_an_endpoint_cannot_do(make: Any) -> None:
    """Weights, and draws of nothing."""
    engine = make()
    assert engine.reproducible is False
    with pytest.raises(EngineError, match="are its own"):
        engine.load_weights(1, [])
    for wrong in (params(0), params(n=0)):
        with pytest.raises(EngineError, match="draw 0: at least one"):
            engine.submit(0, problem(), wrong)


PROGRAM = """
import signal, sys
import dapo.rollout.endpoint_engine as module
module.POLL_SECONDS = 0.2
signal.signal(signal.SIGINT, signal.default_int_handler)
assert not {"httpx2", "torch"} & set(sys.modules), "heavy"
from test_endpoint_engine_prompt import prompt, params
engine = module.EndpointEngine(sys.argv[1], "m")
engine.submit(0, prompt, params)
while not engine.poll():
    print("polled", flush=True)
    if sys.argv[2] == "exit":
        sys.exit(3)
"""
PROMPT = """
import numpy as np
from dapo.types import Prompt, SamplingParams
prompt = Prompt(id="p", messages=None, text="x", answer=None, source="s", token_ids=np.zeros(1, np.int32))
params = SamplingParams(max_new_tokens=1, n=40, seed=1)
"""


@pytest.mark.parametrize("way", ["exit", "interrupt"])
def test_a_hung_server_does_not_keep_the_program(server: Server, tmp_path: Any, way: str) -> None:
    """A process with 16 requests that nobody answers ends at once, by itself or by Ctrl-C."""
    server.script = lambda asked: None
    (tmp_path / "test_endpoint_engine_prompt.py").write_text(PROMPT)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, server.url, way],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            start = time.monotonic()
            if way == "interrupt":
                process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=10)
        finally:
            process.kill()
    assert first == "polled\n", errors
    assert time.monotonic() - start < 3
    assert 0 < len(server.seen) <= 16
    assert process.returncode == (3 if way == "exit" else -signal.SIGINT), errors
    assert way == "exit" or "KeyboardInterrupt" in errors


@pytest.mark.parametrize("tail", ["", "/", "/chat/completions", "/chat/completions/", "/completions", "//"])
def test_addresses_that_mean_the_same(tail: str) -> None:
    """What people paste."""
    assert clean_url(f" https://host:8000/v1{tail}\n") == "https://host:8000/v1"
    assert clean_url(f"http://[::1]:1{tail}") == "http://[::1]:1"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8000/v1",
        "ftp://h/v1",
        "file:///etc/passwd",
        "http://",
        "http:///v1",
        "http://h:x/v1",
        "http://h:99999",
        "http://h:0/v1",
        "http://[::1",
        "http://me:sesame@h/v1",
        "http://h/v1?key=sesame",
        "http://h/v1#sesame",
        "http://a b/v1",
        "http://h/\0sesame",
        "http://h/v1\nX: sesame",
    ],
)
def test_addresses_that_are_none(url: str) -> None:
    """Refused before anything is sent, in words that tell no password."""
    with pytest.raises(UserError, match=r"--endpoint wants .* like http://localhost:8000/v1") as caught:
        EndpointEngine(url, "m")
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong", [{"concurrency": 0}, {"timeout_s": 0.0}, {"timeout_s": float("nan")}, {"retries": -1}]
)
def test_numbers_that_are_none(make: Any, wrong: dict[str, Any]) -> None:
    """One line that names them."""
    with pytest.raises(UserError, match="concurrency >= 1"):
        make(**wrong)


def test_proxies_are_not_for_this_machine(server: Server, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster's HTTP_PROXY does not come between; one that can't be used is the user's to mend."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert ask(make()).num_tokens == 7
    assert ask(make(server.url.replace("127.0.0.1", "localhost"))).num_tokens == 7
    monkeypatch.setenv("HTTP_PROXY", "nonsense://me:sesame@h")
    with pytest.raises(UserError, match="HTTP_PROXY") as caught:
        make()
    assert "sesame" not in str(caught.value)
