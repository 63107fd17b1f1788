"""An agent of the Microsoft Agent Framework behind FastAPI, on as many workers as you like: none keeps anything.

    pip install fastapi uvicorn
    uvicorn agent_framework_fastapi:app --app-dir examples --workers 2
    curl -H 'x-user: alice' --json '{"text": "Where is my bag?"}' http://127.0.0.1:8000/chat

The answer names the session, and /chat/{session_id} goes on with it, whichever worker is asked; for another user that
is a 404. The model is two lines of this file. Conversations are kept where CHATKEEP_URL says, else in chatkeep.db here.
"""

import os
import uuid
from contextlib import asynccontextmanager
from typing import Annotated, Any

from agent_framework import Agent, AgentSession, BaseChatClient, ChatResponse, FunctionInvocationLayer, Message
from fastapi import Body, Depends, FastAPI, Header, HTTPException, Path, Request

from chatkeep import open_store
from chatkeep_adapters.agent_framework import ChatkeepHistoryProvider


class OfflineClient(FunctionInvocationLayer, BaseChatClient):
    async def _inner_get_response(self, *, messages: Any, **_: Any) -> ChatResponse:
        text = f"{messages[-1].text!r} is message {len(messages)}, says process {os.getpid()}."
        return ChatResponse(messages=[Message("assistant", [text])])


@asynccontextmanager
async def lifespan(app: FastAPI) -> Any:
    async with open_store() as store:  # one for each worker; all its requests share it
        yield {"store": store}


async def signed_in(
    request: Request, x_user: Annotated[str, Header(min_length=1, max_length=64)]
) -> ChatkeepHistoryProvider:
    """The histories of the user who has signed in: your authentication says who that is, here it is a header."""
    return ChatkeepHistoryProvider(request.state.store, tenant="acme", user=x_user)


app = FastAPI(lifespan=lifespan)
History = Annotated[ChatkeepHistoryProvider, Depends(signed_in)]
Text = Annotated[str, Body(embed=True)]
Id = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]


@app.post("/chat")
async def begin(history: History, text: Text) -> dict[str, str]:
    session = AgentSession(session_id=uuid.uuid4().hex)
    response = await Agent(OfflineClient(), context_providers=[history]).run(text, session=session)
    return {"session_id": session.session_id, "text": response.text}


@app.post("/chat/{session_id}")
async def go_on(history: History, session_id: Id, text: Text) -> dict[str, str]:
    if not await history.session(session_id).exists():
        raise HTTPException(404, "no such conversation")
    async with history.session(session_id).lease(ttl=120, wait=60):  # who asks twice at once is answered in turn
        session = AgentSession(session_id=session_id)
        response = await Agent(OfflineClient(), context_providers=[history]).run(text, session=session)
    return {"session_id": session_id, "text": response.text}
