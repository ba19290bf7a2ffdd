"""A rollout engine over any server that speaks OpenAI's HTTP interface, for evaluation alone.

A request is one response. Threads ask, try again and put answers in a queue; what the engine keeps is touched by
its caller alone, so there are no locks. The threads are daemons: those of a ThreadPoolExecutor are waited for at
exit, for as long as a server hangs.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dapo.errors import DapoError, EngineError, UserError
from dapo.rng import derive_seed
from dapo.rollout.openai_api import (
    KEY_VARIABLE,
    Answer,
    Failure,
    clean_key,
    clean_url,
    make_client,
    read_answer,
    retry_after,
    server_message,
)
from dapo.types import Finish, FinishedDraw, Prompt, Response, SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0  # after which poll comes back even with nothing finished
BACKOFF_SECONDS = 1.0  # before the second try; doubled for each one after it
MAX_WAIT_SECONDS = 60.0  # between two tries, whatever Retry-After says
TRIED_AGAIN = frozenset({408, 409, 429})  # and all of 500 and above
FINISHES = {"stop": Finish.STOP, "length": Finish.LENGTH, "abort": Finish.ABORT}
MAX_GIVEN_UP = 3  # draws in a row, each after all its tries: then the server is taken to be gone
MAX_QUOTED = 240  # characters of what a server says


ABORTED = Response(
    token_ids=np.zeros(0, np.int32),
    generated=np.zeros(0, bool),
    engine_logprobs=np.zeros(0, np.float32),
    finish=Finish.ABORT,
    token_versions=((0, 0),),
    text="",
)


@dataclass(eq=False, slots=True)
class _Draw:
    """One submission of a draw: asked for again, it is another, and never sees the answers of this one."""

    draw: int
    prompt: Prompt
    params: SamplingParams
    responses: dict[int, Response] = field(default_factory=dict)
    error: DapoError | None = None
    gone: threading.Event = field(default_factory=threading.Event)  # its requests need no answer


class EndpointEngine:
    """Samples responses from a server, n requests for a draw. What comes back is text, not tokens.

    Chat messages go to URL/chat/completions, prompts without them to URL/completions. A request has a seed of
    its own, a function of (params.seed, draw, g); few servers promise the same text for it. Of cancelled draws,
    requests that run are let run and keep their thread until then; their answers are dropped. Lone surrogates
    in a text become U+FFFD, as a tokenizer would write them.

    Args:
        url: http or https, up to and with /v1; a trailing / or /chat/completions is taken off.
        model: the name by which the server knows the model.
        api_key: sent as a bearer token, to this address alone; it is in no message. None or empty: none is sent.
        key_variable: the environment variable that messages say it belongs in.
        concurrency: requests at a time, 1 or more.
        timeout_s: seconds, above 0, that a server may be silent before a try is given up.
        retries: 0 or more further tries, for what may pass: no connection, timeouts, 408, 409, 429, 5xx, no JSON.
        raw: send prompt.text to URL/completions even where there are messages.

    Attributes:
        estimated: responses whose number of tokens is a guess (a quarter of their UTF-8 bytes, plus 1).

    Raises UserError for an address, key or number that can't be used.
    """

    reproducible = False

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str | None = None,
        key_variable: str = KEY_VARIABLE,
        concurrency: int = 16,
        timeout_s: float = 600.0,
        retries: int = 4,
        raw: bool = False,
    ) -> None:
        if concurrency < 1 or not timeout_s > 0 or retries < 0:
            given = f"not {concurrency}, {timeout_s:g} and {retries}"
            raise UserError(f"--endpoint wants concurrency >= 1, a timeout > 0 seconds and retries >= 0, {given}")
        self._url, self._model, self._key = clean_url(url), model, clean_key(api_key, key_variable)
        self._variable = key_variable
        self._concurrency, self._timeout_s, self._retries, self._raw = concurrency, timeout_s, retries, raw
        self._client = make_client(self._url, self._key, concurrency, timeout_s)
        self._reached = threading.Event()  # whether the server has ever answered
        self._jobs: queue.SimpleQueue[tuple[_Draw, int] | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[tuple[_Draw, int, Answer | DapoError]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._left: list[None] = []  # one for each thread that has ended
        self._draws: dict[int, _Draw] = {}  # submitted, and neither handed out nor raised nor cancelled
        self._ended: list[_Draw] = []  # those of them that are complete or have failed, in that order
        self._warned: set[str] = set()
        self._given_up = 0  # draws since the last good answer
        self._closed, self.estimated = False, 0

    def submit(self, draw: int, prompt: Prompt, params: SamplingParams) -> None:
        """See RolloutEngine."""
        if self._closed:
            raise EngineError(f"draw {draw}: the engine is closed")
        if draw in self._draws:
            raise EngineError(f"draw {draw} is already in flight")
        if params.max_new_tokens < 1 or params.n < 1:
            raise EngineError(f"draw {draw}: at least one response of at least one token")
        asked = self._draws[draw] = _Draw(draw, prompt, params)
        for g in range(params.n):
            self._jobs.put((asked, g))
        for _ in range(min(params.n, self._concurrency - len(self._threads))):
            self._threads.append(threading.Thread(target=self._work, name="dapo-endpoint", daemon=True))
            self._threads[-1].start()

    def poll(self) -> list[FinishedDraw]:
        """See RolloutEngine. A draw with a request whose every try went wrong comes back aborted, to be run again.

        Raises UserError when the server refuses, there is none, or draw after draw gets no good answer (what is
        finished is handed out first), EngineError when nothing is in flight.
        """
        if not self._draws:
            raise EngineError("poll with nothing in flight would wait for ever")
        self._collect(time.monotonic() + POLL_SECONDS)
        done = [asked for asked in self._ended if asked.error is None]
        for asked in done or self._ended[:1]:
            self._ended.remove(asked)
            del self._draws[asked.draw]
            if isinstance(asked.error, EngineError):
                logger.warning("%s", asked.error)
                self._given_up += 1
                if self._given_up >= MAX_GIVEN_UP:
                    raise UserError(f"{asked.error.message}, {self._given_up} draws in a row: is the server well?")
                return [FinishedDraw(draw=asked.draw, responses=(ABORTED,) * asked.params.n)]
            if asked.error is not None:
                raise asked.error
        return [FinishedDraw(draw=a.draw, responses=tuple(a.responses[g] for g in range(a.params.n))) for a in done]

    def cancel(self, draws: Collection[int]) -> int:
        """See RolloutEngine. Counts the responses that are here; of the others nothing is known."""
        self._collect(0.0)
        gone = [self._draws.pop(draw) for draw in set(draws) if draw in self._draws]
        for asked in gone:
            asked.gone.set()
        self._ended = [asked for asked in self._ended if asked not in gone]
        return sum(response.num_tokens for asked in gone for response in asked.responses.values())

    def load_weights(self, version: int, tensors: Iterable[tuple[str, Tensor]], *, recompute: bool = False) -> None:
        """Raises EngineError: a server's weights are its own."""
        raise EngineError("the weights of a server (--endpoint) are its own; it is for evaluation alone")

    def weight_samples(self) -> None:
        """A server's weights are its own."""

    def close(self) -> None:
        """See RolloutEngine. Waits for no request; the last thread to end closes the connections."""
        if not self._closed:
            self._closed = True
            self.cancel(list(self._draws))
            for _ in self._threads:
                self._jobs.put(None)

    def _collect(self, until: float) -> None:
        """Takes what the threads have brought, and waits for more until this time while no draw has ended."""
        while True:
            wait = 0.0 if self._ended else max(0.0, until - time.monotonic())
            try:
                asked, g, outcome = self._outcomes.get(timeout=wait)
            except queue.Empty:
                return
            if self._draws.get(asked.draw) is not asked or asked.error is not None:
                continue
            if isinstance(outcome, DapoError):
                asked.error = outcome
            else:
                asked.responses[g], self._given_up = self._response(outcome), 0
            if asked.error or len(asked.responses) == asked.params.n:
                self._ended.append(asked)

    def _response(self, answer: Answer) -> Response:
        count = answer.tokens
        if count is None:
            count = len(answer.text.encode()) // 4 + 1
            self.estimated += 1
            self._warn("gives no usage.completion_tokens; numbers of tokens are estimated from the text")
        if answer.reason not in FINISHES:
            self._warn(f"ends responses with finish_reason {self._quote(answer.reason)!r}; they count as stopped")
        return Response(
            token_ids=np.full(count, -1, np.int32),
            generated=np.ones(count, bool),
            engine_logprobs=np.full(count, np.nan, np.float32),
            finish=FINISHES.get(answer.reason, Finish.STOP),
            token_versions=((0, count),),
            text=self._hide(answer.text),
        )

    def _warn(self, what: str) -> None:
        """Each warning once."""
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("%s", self._hide(f"the server at {self._url} {what}"))

    def _work(self) -> None:
        """A thread: answers jobs until it is told to stop. It never dies with an answer owed."""
        while (job := self._jobs.get()) is not None:
            asked, g = job
            if asked.gone.is_set():
                continue
            try:
                outcome: Answer | DapoError = self._ask(asked, g)
            except Exception as error:
                fault = self._hide(f"{self._url}: {type(error).__name__}: ") + self._quote(error)
                outcome = error if isinstance(error, DapoError) else EngineError(fault)
            if not asked.gone.is_set():
                self._outcomes.put((asked, g, outcome))
            if isinstance(outcome, DapoError):
                asked.gone.set()  # the rest of the draw is in vain
        self._left.append(None)
        if len(self._left) == len(self._threads):  # under a reading thread, a closed descriptor may be reused
            self._client.close()

    def _ask(self, asked: _Draw, g: int) -> Answer:
        """The answer to one request. Raises UserError, or EngineError after the last try."""
        chat = asked.prompt.messages is not None and not self._raw
        body = request_body(self._model, asked, g, chat=chat)
        url = self._url + ("/chat/completions" if chat else "/completions")
        for attempt in range(self._retries + 1):
            try:
                return read_answer(self._post(url, body), chat=chat)
            except Failure as failure:
                what = self._hide(f"draw {asked.draw}: {url}: ") + self._quote(failure)
                wait = BACKOFF_SECONDS * 2.0 ** min(attempt, 10) if failure.wait is None else failure.wait
            if attempt < self._retries:
                wait = min(wait, MAX_WAIT_SECONDS)
                logger.warning("%s; asked again in %.3g s (%d of %d)", what, wait, attempt + 1, self._retries)
                if asked.gone.wait(wait):
                    break
        raise EngineError(f"{what} (given up after {self._retries + 1} tries)")

    def _post(self, url: str, body: bytes) -> bytes:
        """The body of a good answer. Raises Failure for what may pass, UserError for what won't."""
        import httpx2

        try:
            reply = self._client.post(url, content=body)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            if not self._reached.is_set():
                what = self._hide(f"no server answers at {self._url} (--endpoint); start it, or mend the address")
                raise UserError(f"{what} ({self._quote(error) or 'timed out'})") from None
            raise Failure(f"no connection: {error or 'timed out'}") from None
        except httpx2.HTTPError as error:
            late = isinstance(error, httpx2.TimeoutException)
            what = f"no answer within {self._timeout_s:g} s" if late else f"{type(error).__name__}: {error}"
            raise Failure(what) from None
        self._reached.set()
        status = reply.status_code
        if status < 300:
            return reply.content
        said = reply.headers.get("location", "") if status < 400 else server_message(reply.content)
        if status in TRIED_AGAIN or status >= 500:
            raise Failure(f"HTTP {status}: {said}", retry_after(reply.headers.get("retry-after", "")))
        said = f"HTTP {status}: {self._quote(said) or 'no word'}"
        raise UserError(f"{self._hide(url)} answers {said}; {self._mend(status)}")

    def _mend(self, status: int) -> str:
        """What the user can do about a refusal."""
        if status in (401, 403):
            state = "the one there does not do" if self._key else "there is none"
            return f"the server wants a key, in the environment variable {self._variable} ({state})"
        if status in (404, 405):
            return self._hide(f"check the model name {self._model!r}, and the address (--endpoint): most end in /v1")
        if status < 400:
            return "redirects are not followed; give the address that it leads to (--endpoint)"
        return "mend what it names: the model, eval.max_response_tokens, eval.temperature, sampling.stop, ..."

    def _hide(self, text: str) -> str:
        """The text without the key."""
        return text.replace(self._key, "***") if self._key else text

    def _quote(self, text: object) -> str:
        """What a server or a library says: without the key, on one line, shortened."""
        words = " ".join("".join(c if c.isprintable() else " " for c in self._hide(str(text))[:9000]).split())
        return words if len(words) <= MAX_QUOTED else f"{words[:MAX_QUOTED]}..."


def request_body(model: str, asked: _Draw, g: int, *, chat: bool) -> bytes:
    """The JSON of one request, all ASCII; nothing in it that a server may not know."""
    prompt, params = asked.prompt, asked.params
    words = {"messages": [dict(message) for message in prompt.messages or ()]} if chat else {"prompt": prompt.text}
    sampling = {"max_tokens": params.max_new_tokens, "temperature": params.temperature, "top_p": params.top_p}
    seed = derive_seed(params.seed, asked.draw, g) & 0x7FFFFFFF
    stop = {"stop": params.stop} if params.stop else {}
    return json.dumps({"model": model, **words, **sampling, "seed": seed, **stop}).encode()
