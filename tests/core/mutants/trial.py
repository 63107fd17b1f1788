"""The tests of a trial: the contract on the memory backend, and in front of it whether there is a store at all."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from chatkeep import ChatMessage, Store
from chatkeep.testing import StoreContract

from . import Mutant


class TestTrial(StoreContract):
    """What the judge runs again and again, each time with another mutant in place."""

    mutant: Mutant | None = None

    @pytest.fixture
    def url(self) -> str:
        return f"memory://{uuid.uuid4().hex}"

    @pytest.fixture(autouse=True)
    def mutation(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            if self.mutant is not None:
                patch.setattr(self.mutant.place, self.mutant.value)
            yield

    async def test_it_is_a_store_all_the_same(self, store: Store[ChatMessage]) -> None:
        session = store.session("sound")
        await session.append([ChatMessage.user("Where is my bag?"), ChatMessage.assistant("In Oslo.")])
        assert [message.text for message in await session.messages()] == ["Where is my bag?", "In Oslo."]
        await session.state.set("bags", 1)
        assert await session.state.get("bags") == 1
        assert [info.id for info in await store.list_sessions()] == ["sound"]
