"""Service session ids: kept with the session, found through one's own sessions, and by nobody else.

Alice and Bob have a scope each in one store. The service that answers them knows conversations by id alone: whoever
holds one of its ids and the application's key goes on with that conversation.
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import Any

import agent_framework
import pytest
from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatResponse,
    ChatResponseUpdate,
    Message,
    ResponseStream,
)

from chatkeep import InvalidIdError, ScopedStore, open_store

if not hasattr(agent_framework, "SessionStore"):
    pytest.skip("this framework has no SessionStore: it came with 1.13", allow_module_level=True)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # The framework's: session stores are experimental.
    from chatkeep_adapters.agent_framework.sessions import ChatkeepSessionStore

A2A = {"context_id": "ctx-1", "task_id": "task-1", "task_state": 6}


class Service(BaseChatClient[Any]):
    """Keeps each conversation itself, and gives an id to one that has none."""

    STORES_BY_DEFAULT = True

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, list[str]] = {}

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **_: Any
    ) -> Awaitable[ChatResponse[Any]] | ResponseStream[ChatResponseUpdate, ChatResponse[Any]]:
        issued = options.get("conversation_id") or f"conv_{len(self.kept) + 1}"
        self.kept.setdefault(issued, []).extend(message.text for message in messages)
        if stream:
            return ResponseStream(self._updates(issued), finalizer=ChatResponse.from_updates)
        return self._response(issued)

    async def _response(self, issued: str) -> ChatResponse[Any]:
        return ChatResponse(messages=[Message("assistant", ["Noted."])], conversation_id=issued)

    async def _updates(self, issued: str) -> AsyncIterator[ChatResponseUpdate]:
        for text in ("No", "ted."):
            yield ChatResponseUpdate(
                role="assistant", contents=[agent_framework.Content.from_text(text)], conversation_id=issued
            )


@pytest.fixture
async def scopes(url: str) -> AsyncIterator[tuple[ScopedStore[Any], ScopedStore[Any]]]:
    async with open_store(url) as store:
        yield store.scoped(tenant="acme", user="alice"), store.scoped(tenant="acme", user="bob")


@pytest.fixture
def alice(scopes: tuple[ScopedStore[Any], ScopedStore[Any]]) -> ChatkeepSessionStore:
    return ChatkeepSessionStore(scopes[0])


@pytest.fixture
def bob(scopes: tuple[ScopedStore[Any], ScopedStore[Any]]) -> ChatkeepSessionStore:
    return ChatkeepSessionStore(scopes[1])


@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_goes_on_with_the_services_conversation(alice: ChatkeepSessionStore, stream: bool) -> None:
    service = Service()
    agent = Agent(client=service)
    for question in ("Where is my bag?", "And now?"):
        session = await alice.get("support-42") or agent.create_session(session_id="support-42")
        if stream:
            await agent.run(question, session=session, stream=True).get_final_response()
        else:
            await agent.run(question, session=session)
        await alice.set("support-42", session)
    assert service.kept == {"conv_1": ["Where is my bag?", "And now?"]}


async def test_a_session_on_an_existing_conversation_is_resumed_by_its_session_id(alice: ChatkeepSessionStore) -> None:
    service = Service()
    service.kept["conv_7"] = ["Hello"]
    agent = Agent(client=service)
    await alice.set("support-42", agent.get_session(service_session_id="conv_7", session_id="support-42"))
    session = await alice.get("support-42")
    assert session is not None
    await agent.run("Go on.", session=session)
    assert service.kept == {"conv_7": ["Hello", "Go on."]}


@pytest.mark.parametrize(
    ("issued", "asked"), [("conv_1", "conv_1"), (A2A, dict(reversed(A2A.items())))], ids=["text", "mapping"]
)
async def test_a_session_is_found_by_its_service_id(
    alice: ChatkeepSessionStore, scopes: tuple[ScopedStore[Any], ScopedStore[Any]], issued: Any, asked: Any
) -> None:
    session = Agent(client=Service()).get_session(service_session_id=issued, session_id="support-42")
    session.state["step"] = 3
    await alice.set("support-42", session)
    found = await alice.find_by_service_id(asked)
    assert found is not None
    assert (found.session_id, found.service_session_id, found.state) == ("support-42", issued, {"step": 3})
    held = await scopes[0].find_by_service_id(asked)
    assert held is not None
    assert held.id == "support-42"


async def test_an_a2a_session_goes_on_with_its_context_and_newest_task(alice: ChatkeepSessionStore) -> None:
    agent = Agent(client=Service())
    await alice.set("support-42", agent.get_session(service_session_id=A2A, session_id="support-42"))
    session = await alice.get("support-42")
    assert session is not None
    assert session.service_session_id == A2A
    session.service_session_id = {**A2A, "task_id": "task-2"}
    await alice.set("support-42", session)
    assert await alice.find_by_service_id(A2A) is None
    found = await alice.find_by_service_id({**A2A, "task_id": "task-2"})
    assert found is not None
    assert found.session_id == "support-42"


@pytest.fixture(params=["conv_1", A2A], ids=["text", "mapping"])
async def issued(request: pytest.FixtureRequest, alice: ChatkeepSessionStore) -> Any:
    """A service id of Alice's stored session."""
    await alice.set("alices", AgentSession(session_id="alices", service_session_id=request.param))
    return request.param


async def test_another_users_service_id_is_not_found_as_a_session_id(bob: ChatkeepSessionStore, issued: Any) -> None:
    assert await bob.get("alices") is None
    if isinstance(issued, str):
        assert await bob.get(issued) is None
    else:
        with pytest.raises(InvalidIdError):
            await bob.get(issued)


async def test_another_users_service_id_is_not_found_as_a_service_id(bob: ChatkeepSessionStore, issued: Any) -> None:
    assert await bob.find_by_service_id(issued) is None


async def test_another_users_serialised_session_is_not_found(
    alice: ChatkeepSessionStore, bob: ChatkeepSessionStore, issued: Any
) -> None:
    session = await alice.get("alices")
    assert session is not None
    taken = session.to_dict()
    assert await bob.resume(taken) is None
    await bob.set("bobs", AgentSession(session_id="bobs", service_session_id="conv_2"))
    assert await bob.resume({**taken, "session_id": "bobs"}) is None
    assert await alice.resume(taken) is not None


async def test_of_what_a_client_sends_only_the_session_id_is_believed(bob: ChatkeepSessionStore) -> None:
    own = AgentSession(session_id="bobs", service_session_id="conv_2")
    own.state["role"] = "user"
    await bob.set("bobs", own)
    sent = {"type": "session", "session_id": "bobs", "state": {"role": "admin"}}
    session = await bob.resume(sent)
    assert session is not None
    assert (session.state, session.service_session_id) == ({"role": "user"}, "conv_2")
    with pytest.raises(InvalidIdError, match="the snapshot's session_id must be a str"):
        await bob.resume({"state": {}})


@pytest.mark.parametrize("sent", [None, "{}"])
async def test_what_is_no_serialised_session_is_refused(bob: ChatkeepSessionStore, sent: Any) -> None:
    with pytest.raises(TypeError, match=rf"takes the mapping of session\.to_dict\(\), not {type(sent).__name__}: read"):
        await bob.resume(sent)


async def test_a_service_id_that_another_user_stores_takes_nothing_over(
    alice: ChatkeepSessionStore, bob: ChatkeepSessionStore, issued: Any
) -> None:
    await bob.set("bobs", AgentSession(session_id="bobs", service_session_id=issued))
    await bob.delete("alices")
    hers, his = await alice.find_by_service_id(issued), await bob.find_by_service_id(issued)
    assert hers is not None
    assert his is not None
    assert (hers.session_id, his.session_id) == ("alices", "bobs")


async def test_a_deleted_session_is_not_found_by_its_service_id(alice: ChatkeepSessionStore, issued: Any) -> None:
    await alice.delete("alices")
    assert await alice.find_by_service_id(issued) is None
