"""Send valid and invalid generated requests to every operation of the OpenAPI document.

Every response must have a documented status and shape. Existing ids and keys are mixed in so that requests pass the
first checks. The short run is deterministic; `make faults` runs the long one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from figures import measured
from http_rig import BEARER, Json, check_problem, served
from sessile.gateway.http.asgi import all_operations

pytestmark = pytest.mark.promise("P40")

# High limits, so that thousands of requests are not rejected.
LIMITS: Json = {"limits": {"requestsPerSecond": 1_000_000, "connections": 1_000}}
SHORT, LONG = 6, 1_200  # requests for each operation and kind of data
HELLO = {"role": "user", "content": "hello"}
KEYS = ["main", "hook:a", "hook:b", "hook:c"]

MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)

# An operation without input has no invalid requests.
ASKED = [
    pytest.param(operation.method, operation.path, mode, id=f"{operation.method} {operation.path} {mode.value}")
    for operation in all_operations()
    if operation.path.startswith(("/v1/", "/healthz"))
    for mode in MODES
    if mode is GenerationMode.POSITIVE or operation.query or operation.headers or operation.body
]


class Target:
    """A running gateway with some conversations."""

    def __init__(self, address: str) -> None:
        # No keep-alive: the gateway could close an idle connection just when the next request is sent.
        limits = httpx.Limits(max_keepalive_connections=0)
        self.client = httpx.Client(base_url=address, headers=BEARER, timeout=20, limits=limits)
        self.address = address
        document = self.client.get("/v1/openapi.json").json()
        self.schema = schemathesis.openapi.from_dict(document)
        self.schema.config.generation.update(with_security_parameters=False)  # other tests cover tokens
        self.known: dict[str, list[Any]] = {"key": KEYS, "to": KEYS, "sessionId": [], "entry": [], "turn": []}
        for key in KEYS[:3]:
            sent = self.client.post("/v1/chat/send", json={"message": "hello", "key": key, "wait": True}).json()
            self.known["sessionId"].append(sent["sessionId"])
            self.known["entry"] += [sent["turn"], sent["reply"]["entryId"]]
            self.known["turn"].append(sent["turn"])
        self.known["session"] = self.known["id"] = self.known["sessionId"]
        self.known["before"] = self.known["expectedLeaf"] = self.known["entry"]

    def send(self, case: Any) -> httpx.Response:
        """Send a case and return the response; a stream of events is not read."""
        kwargs = case.as_transport_kwargs(base_url=self.address)
        body = {"json": kwargs["json"]} if "json" in kwargs else {"content": kwargs.get("data")}
        headers = {**kwargs.get("headers", {}), **BEARER}
        try:
            request = self.client.build_request(
                kwargs["method"], kwargs["url"], params=kwargs.get("params"), headers=headers, **body
            )
        except httpx.InvalidURL:
            reject()  # the URL is too long for this client
        response = self.client.send(request, stream=True)
        if case.path != "/v1/events" or response.status_code != 200:
            response.read()
        response.close()
        return response


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with served(tmp_path_factory.mktemp("store"), LIMITS, echo=True) as (address, _):
        one = Target(address)
        yield one
        one.client.close()


EITHER = [("key", "sessionId"), ("key", "session"), ("key", "inbound"), ("key", "agent"), ("wait", "stream")]
OF_ONE = ("/v1/session/history", "/v1/session/context", "/v1/session/fork", "/v1/session/rewind")
REFUSED = ("tools", "functions", "n", "expected", "expectedLeaf")


def make_sense(data: st.DataObject, case: Any, known: dict[str, list[Any]]) -> None:
    """Make most requests meaningful: use existing ids and remove members that exclude each other."""
    if data.draw(st.integers(0, 3)) == 0:
        return
    if case.path in OF_ONE:
        asked = case.body if isinstance(case.body, dict) else case.query
        if not asked.get("sessionId"):
            asked["key"] = KEYS[0]
    for part in (case.query, case.body):
        if not isinstance(part, dict):
            continue
        for pair in EITHER:
            if all(part.get(name) for name in pair):
                del part[data.draw(st.sampled_from(pair))]
        for name in [name for name in part if name in REFUSED]:
            del part[name]
        for name in [name for name in part if name in known]:
            part[name] = data.draw(st.sampled_from(known[name]))
        if "message" in part:
            part["message"] = part["message"].strip() or "hello"
        if part.get("messages"):
            part["messages"] = [*(one for one in part["messages"] if one.get("role") == "system"), HELLO]


def check(operation: Any, response: httpx.Response) -> None:
    """Check that the status and content type are documented."""
    told = operation.definition.raw["responses"]
    assert str(response.status_code) in told, (response.status_code, response.text)
    kind = response.headers["content-type"]
    assert kind in told[str(response.status_code)]["content"], kind
    assert response.status_code < 500, response.text
    if kind == "application/problem+json":
        check_problem(response)


def _is_plain(value: Any) -> bool:
    """Return whether an invalid value reads as a valid one in a URL: a boolean, a number or nothing."""
    return value in ([], "true", "false") or (isinstance(value, str) and value.isdecimal())


def run(target: Target, method: str, path: str, mode: GenerationMode, examples: int) -> None:
    operation = target.schema[path][method]
    # In a URL, a single value is a list of one, and any value is text.
    told = operation.definition.raw.get("parameters", ())
    lists = {parameter["name"] for parameter in told if parameter["schema"].get("type") == "array"}
    statuses: Counter[str] = Counter()

    @settings(
        max_examples=examples,
        derandomize=examples == SHORT,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def ask(data: st.DataObject) -> None:
        case = data.draw(operation.as_strategy(generation_mode=mode))
        if mode is GenerationMode.POSITIVE:
            make_sense(data, case, target.known)
        response = target.send(case)
        check(operation, response)
        statuses["accepted" if response.status_code < 400 else "refused"] += 1
        query = case.query or {}
        accepted = mode is GenerationMode.POSITIVE or not lists.isdisjoint(query) or any(map(_is_plain, query.values()))
        assert accepted or response.status_code >= 400, (response.request.url, response.text)
        if response.headers["content-type"] == "application/json":
            case.validate_response(response, checks=[schemathesis.checks.response_schema_conformance])

    ask()
    total = sum(statuses.values())
    measured("P40", "requests generated from the OpenAPI document", requests=total, **statuses, server_errors=0)


@pytest.mark.parametrize(("method", "path", "mode"), ASKED)
def test_whatever_is_asked_the_answer_is_documented(
    target: Target, method: str, path: str, mode: GenerationMode
) -> None:
    """Every response is documented, and invalid requests are rejected."""
    run(target, method, path, mode, SHORT)


@pytest.mark.long
@pytest.mark.parametrize(("method", "path", "mode"), ASKED)
def test_whatever_is_asked_many_times_the_answer_is_documented(
    target: Target, method: str, path: str, mode: GenerationMode
) -> None:
    """The same check with a hundred thousand requests in total."""
    run(target, method, path, mode, LONG)
