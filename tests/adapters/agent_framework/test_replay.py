"""What is new among the messages of a save: nothing is lost, and nothing is stored twice."""

from __future__ import annotations

import asyncio
import copy
import pickle
import random
from typing import Any

import pytest
from agent_framework import Agent, AgentSession, Content, Message
from tests.adapters.agent_framework.conversations import Opener, Persistent, ask, calls, lose_answer, said, weather

from chatkeep import OutcomeUnknownError, StoreUnavailableError, Window, drop_tool_bodies
from chatkeep_adapters.agent_framework import ChatkeepHistoryProvider


async def test_who_says_the_same_twice_has_said_it_twice(store: Any, scripted: Any) -> None:
    agent = Agent(scripted(), context_providers=[ChatkeepHistoryProvider(store)])
    session = AgentSession(session_id="ok")
    for _ in range(3):
        await ask(agent, "ok", session)
    assert said(await ChatkeepHistoryProvider(store).get_messages("ok")) == [("user", "ok"), ("assistant", "ok")] * 3


async def test_who_says_the_same_twice_where_answers_are_not_kept_has_said_it_twice(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store, store_outputs=False)
    agent, session, question = Agent(scripted(), context_providers=[provider]), AgentSession(), Message("user", ["ok"])
    for _ in range(3):
        await ask(agent, question, session)
    assert said(await provider.get_messages(session.session_id)) == [("user", "ok")] * 3


async def test_a_turn_saved_once_more_by_hand_is_another_turn(store: Any) -> None:
    provider = ChatkeepHistoryProvider(store)
    for _ in range(2):
        await provider.save_messages("ok", [Message("user", ["ok"]), Message("assistant", ["ok"])])
    assert len(await provider.get_messages("ok")) == 4


@pytest.mark.parametrize("by", ["the messages read", "the caller's own", "what came over a wire"])
async def test_of_a_transcript_handed_over_again_only_the_new_is_stored(store: Any, scripted: Any, by: str) -> None:
    provider = ChatkeepHistoryProvider(store)
    audit = ChatkeepHistoryProvider(store, source_id="audit", load_messages=False)
    agent, session = Agent(scripted(), context_providers=[provider, audit]), AgentSession(session_id="chat")
    transcript: list[Message] = []
    for number in range(4):
        if by == "the messages read":
            transcript = await provider.get_messages("chat")
        elif by == "what came over a wire":
            transcript = [Message.from_dict(message.to_dict()) for message in transcript]
        transcript = [*transcript, Message("user", ["ok" if number % 2 else "go on"])]
        answer = await agent.run(transcript, session=session)
        transcript = [*transcript, *answer.messages]
    expected = [("user", "go on"), ("assistant", "ok"), ("user", "ok"), ("assistant", "ok")] * 2
    assert said(await provider.get_messages("chat")) == expected
    assert said(await audit.get_messages("chat")) == expected


async def test_a_transcript_saved_again_by_hand_adds_only_what_is_new(store: Any) -> None:
    provider = ChatkeepHistoryProvider(store)
    transcript: list[Message] = []
    for number in range(4):
        transcript += [Message("user", [f"question {number % 2}"]), Message("assistant", ["the same answer"])]
        await provider.save_messages("chat", transcript)
    assert said(await provider.get_messages("chat")) == said(transcript)


async def test_a_transcript_longer_than_a_trimmed_log_adds_only_what_is_new(opened: Opener) -> None:
    provider = ChatkeepHistoryProvider(opened(max_messages=4))
    transcript: list[Message] = []
    for number in range(6):
        transcript += [Message("user", [f"question {number}"]), Message("assistant", ["the same answer"])]
        await provider.save_messages("chat", transcript)
    assert said(await provider.get_messages("chat")) == said(transcript[-4:])


async def test_asking_an_earlier_question_again_is_no_replay(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store)
    agent, session = Agent(scripted(), context_providers=[provider]), AgentSession(session_id="again")
    for question in ("first?", "second?"):
        await ask(agent, question, session)
    await ask(agent, (await provider.get_messages("again"))[0], session)
    found = [message.text for message in await provider.get_messages("again") if message.role == "user"]
    assert found == ["first?", "second?", "first?"]


async def test_examples_in_front_of_each_question_are_stored_each_time(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store)
    agent, session = Agent(scripted(), context_providers=[provider]), AgentSession(session_id="examples")
    examples = [Message("user", ["2 + 2?"]), Message("assistant", ["4"])]
    for question in ("3 + 3?", "4 + 4?"):
        await agent.run([*examples, Message("user", [question])], session=session)
    turn = [("user", "2 + 2?"), ("assistant", "4")]
    assert said(await provider.get_messages("examples")) == [
        *turn, ("user", "3 + 3?"), ("assistant", "ok"), *turn, ("user", "4 + 4?"), ("assistant", "ok"),
    ]  # fmt: skip


async def test_messages_with_ids_are_stored_once_whatever_their_shape(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store)
    client = scripted(
        Message("assistant", ["hi there"], message_id="a-1"), Message("assistant", ["bye"], message_id="a-2")
    )
    agent, session = Agent(client, context_providers=[provider]), AgentSession(session_id="ids")
    one = Message("user", ["hello"], message_id="u-1")
    await agent.run(one, session=session)
    shortened = Message("assistant", ["hi"], message_id="a-1")
    await agent.run([one, shortened, Message("user", ["good bye"], message_id="u-2")], session=session)
    expected = [("user", "hello"), ("assistant", "hi there"), ("user", "good bye"), ("assistant", "bye")]
    assert said(await provider.get_messages("ids")) == expected
    again = [one, shortened, Message("assistant", ["so long"], message_id="a-2")]
    await asyncio.gather(*(provider.save_messages("ids", again) for _ in range(8)))
    assert said(await provider.get_messages("ids")) == expected


@pytest.mark.parametrize("load", [True, False], ids=["loading", "audit"])
async def test_a_service_that_gives_every_message_the_same_id_loses_none(store: Any, scripted: Any, load: bool) -> None:
    provider = ChatkeepHistoryProvider(store, load_messages=load)
    steps = [Message("assistant", calls("Oslo"), message_id="m"), *(
        Message("assistant", [text], message_id="m") for text in ("sunny", "welcome", "bye")
    )]  # fmt: skip
    agent = Agent(scripted(*steps), tools=[weather], context_providers=[provider])
    session = AgentSession(session_id="same")
    for question in ("How is Oslo?", "Thanks", "Bye"):
        await ask(agent, question, session)
    assert said(await provider.get_messages("same")) == [
        ("user", "How is Oslo?"), ("assistant", ["function_call"]), ("tool", ["function_result"]),
        ("assistant", "sunny"), ("user", "Thanks"), ("assistant", "welcome"), ("user", "Bye"), ("assistant", "bye"),
    ]  # fmt: skip
    assert {m.message_id for m in await provider.get_messages("same") if m.role == "assistant"} == {"m"}


async def test_an_answer_with_the_id_and_the_words_of_one_that_the_model_was_shown_is_another(
    store: Any, scripted: Any
) -> None:
    provider = ChatkeepHistoryProvider(store)
    client = scripted(*(Message("assistant", ["ok"], message_id="m") for _ in range(3)))
    agent, session = Agent(client, context_providers=[provider]), AgentSession(session_id="same")
    for _ in range(3):
        await ask(agent, "ok", session)
    assert said(await provider.get_messages("same")) == [("user", "ok"), ("assistant", "ok")] * 3


async def test_what_was_read_is_known_where_no_agent_speaks_in_it(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store, store_outputs=False)
    agent, session = Agent(scripted(), context_providers=[provider]), AgentSession(session_id="questions")
    for question in ("one", "two", "three"):
        await agent.run([*await provider.get_messages("questions"), Message("user", [question])], session=session)
    assert [message.text for message in await provider.get_messages("questions")] == ["one", "two", "three"]


async def test_what_was_read_is_known_when_a_reducer_has_shortened_it(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store, window=Window(reducers=[drop_tool_bodies(keep_last=0)]))
    agent = Agent(scripted(calls("Oslo"), "sunny"), tools=[weather], context_providers=[provider])
    session = AgentSession(session_id="short")
    await ask(agent, "How is Oslo?", session)
    shown = await provider.get_messages("short")
    await agent.run([*shown[1:], Message("user", ["Bye"])], session=session)
    assert len(await provider.get_messages("short")) == 6


async def test_what_was_read_from_another_session_is_new_here(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store)
    agent, here = Agent(scripted(), context_providers=[provider]), AgentSession(session_id="here")
    await ask(agent, "there", AgentSession(session_id="there"))
    await ask(agent, "here", here)
    pasted = [*await provider.get_messages("there"), *await provider.get_messages("here"), Message("user", ["so?"])]
    await agent.run(pasted, session=here)
    assert [message.text for message in await provider.get_messages("here")] == [
        "here", "ok", "there", "ok", "so?", "ok",
    ]  # fmt: skip


async def test_what_only_users_say_is_no_sign_of_a_replay(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store, store_outputs=False)
    agent, session = Agent(scripted(), context_providers=[provider]), AgentSession(session_id="users")
    await ask(agent, "ok", session)
    example = [Message("user", ["ok"]), Message("assistant", ["for example"]), Message("user", ["ok"])]
    await agent.run(example, session=session)
    assert [message.text for message in await provider.get_messages("users")] == ["ok", "ok", "for example", "ok"]


async def test_a_turn_that_was_not_saved_is_found_in_the_next_transcript_though_it_repeats_the_one_before(
    store: Any,
) -> None:
    provider = ChatkeepHistoryProvider(store)

    def turn() -> list[Message]:
        return [Message("user", ["ok"]), Message("assistant", ["ok"])]

    await provider.save_messages("gap", turn())
    await provider.save_messages("gap", [*turn(), *turn(), Message("user", ["and now?"])])
    assert len(await provider.get_messages("gap")) == 5


async def test_what_was_read_may_be_copied_and_pickled_and_is_still_known(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store)
    agent, session = Agent(scripted(), context_providers=[provider]), AgentSession(session_id="copy")
    await ask(agent, "ok", session)
    for copied in (copy.copy, copy.deepcopy, lambda message: pickle.loads(pickle.dumps(message))):
        await agent.run([*map(copied, await provider.get_messages("copy")), Message("user", ["ok"])], session=session)
    assert len(await provider.get_messages("copy")) == 8


class Edited(ChatkeepHistoryProvider):
    """Divides a run's messages, and leaves out what is said in the system's role: a provider of somebody's own."""

    async def save_messages(self, session_id: Any, messages: Any, **kwargs: Any) -> None:
        own = [message for message in messages if message.role != "system"]
        await super().save_messages(session_id, own[:1], **kwargs)
        await super().save_messages(session_id, own[1:], **kwargs)


def user(text: str, id: str | None = None) -> Message:
    return Message("user", [text], message_id=id)


def answer(text: str, id: str | None = None) -> Message:
    return Message("assistant", [text], message_id=id)


def over_a_wire(messages: list[Message]) -> list[Message]:
    return [Message.from_dict(message.to_dict()) for message in messages]


async def talk(provider: Any, scripted: Any, answers: list[Any], *questions: list[Message] | Message) -> list[Any]:
    """One run for each of the questions, the answers being the model's, and what is kept then."""
    agent = Agent(scripted(*answers), tools=[weather], context_providers=[provider])
    for question in questions:
        await agent.run(question, session=AgentSession(session_id="talk"))
    return said(await provider.get_messages("talk"))


# Ids that are used again


@pytest.mark.parametrize(
    "options", [{"load_messages": False}, {"window": Window(max_messages=2)}], ids=["audit", "window"]
)
async def test_an_answer_is_stored_though_an_earlier_one_has_its_id_and_its_words(
    store: Any, scripted: Any, options: Any
) -> None:
    provider = ChatkeepHistoryProvider(store, **options)
    answers = [answer("ok", "m"), answer("hm", "n"), answer("ok", "m")]
    await talk(provider, scripted, answers, user("1"), user("2"), user("3"))
    assert said(await provider.log("talk").messages()) == [
        ("user", "1"), ("assistant", "ok"), ("user", "2"), ("assistant", "hm"), ("user", "3"), ("assistant", "ok"),
    ]  # fmt: skip


async def test_answers_of_parallel_runs_with_one_id_are_all_stored(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store)
    agents = [Agent(scripted(answer("ok", "m")), context_providers=[provider]) for _ in range(8)]
    session = AgentSession(session_id="parallel")
    await asyncio.gather(*(agent.run(f"question {number}", session=session) for number, agent in enumerate(agents)))
    found = said(await provider.get_messages("parallel"))
    assert sorted(found) == [("assistant", "ok")] * 8 + [("user", f"question {number}") for number in range(8)]


async def test_a_transcript_from_elsewhere_with_ids_used_again_is_stored_whole(store: Any, scripted: Any) -> None:
    transcript = [user("1"), answer("a", "m"), user("2"), answer("b", "m"), answer("b", "m"), user("3")]
    provider = ChatkeepHistoryProvider(store)
    assert await talk(provider, scripted, ["yes"], transcript) == [*said(transcript), ("assistant", "yes")]
    await provider.save_messages("by hand", transcript)
    assert said(await provider.get_messages("by hand")) == said(transcript)
    again = [*over_a_wire([*transcript, answer("yes")]), user("4")]
    assert len(await talk(provider, scripted, ["no"], again)) == len(again) + 1, "and is known the next time"


async def test_a_message_that_is_stored_without_its_id_can_be_edited(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store)
    await talk(provider, scripted, [answer("one", "m"), answer("two", "m")], user("1"), user("2"))
    log = provider.log("talk")
    last = (await log.messages())[-1]
    last.contents[0].text = "three"
    await log.replace(4, last)
    await log.redact(2)
    assert [message.text for message in await log.messages()] == ["1", "[redacted]", "2", "three"]
    assert [message.message_id for message in await log.messages()] == [None, "m", None, "m"]


async def test_a_question_that_was_edited_under_its_id_is_stored_and_one_sent_again_is_not(
    store: Any, scripted: Any
) -> None:
    provider = ChatkeepHistoryProvider(store)
    found = await talk(provider, scripted, ["a", "b", "c"], user("1", "u"), user("1 again", "u"), user("1", "u"))
    assert found == [
        ("user", "1"), ("assistant", "a"), ("user", "1 again"), ("assistant", "b"), ("assistant", "c"),
    ]  # fmt: skip


async def test_an_answer_with_the_id_of_its_question_is_stored(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store)
    assert len(await talk(provider, scripted, [answer("a", "m")], [user("1", "m"), user("2", "n")])) == 3


async def test_answers_keep_their_ids_where_a_question_has_a_known_one(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store)
    answers = [answer("a", "A"), answer("b", "B"), answer("c", "C")]
    await talk(provider, scripted, answers[:2], user("1", "U"), user("1 again", "U"))
    found = await talk(provider, scripted, answers[2:], [answer("b", "B"), user("2")])
    assert found[2:] == [("user", "1 again"), ("assistant", "b"), ("user", "2"), ("assistant", "c")]


# What stands there twice


async def test_a_message_object_twice_in_one_input_is_said_twice(store: Any, scripted: Any) -> None:
    provider, question = ChatkeepHistoryProvider(store), user("ok")
    agent, session = Agent(scripted("a", "b"), context_providers=[provider]), AgentSession(session_id="twice")
    response = await agent.run(question, session=session)
    await agent.run([question, *response.messages, question], session=session)
    assert said(await provider.get_messages("twice")) == [
        ("user", "ok"), ("assistant", "a"), ("user", "ok"), ("assistant", "b"),
    ]  # fmt: skip


async def test_an_answer_that_is_the_same_object_each_time_is_stored_each_time(store: Any, scripted: Any) -> None:
    provider, cached = ChatkeepHistoryProvider(store), answer("busy", "m")
    agent, session = Agent(scripted(*[cached] * 3), context_providers=[provider]), AgentSession(session_id="cached")
    transcript: list[Message] = []
    for question in "123":
        transcript = [*transcript, user(question)]
        transcript += (await agent.run(transcript, session=session)).messages
        assert said(await provider.get_messages("cached")) == said(transcript)


@pytest.mark.parametrize("edited", [False, True], ids=["said again", "edited"])
@pytest.mark.parametrize("place", [0, 1], ids=["question", "answer"])
async def test_behind_a_history_that_was_read_an_earlier_message_of_it_is_new(
    store: Any, scripted: Any, place: int, edited: bool
) -> None:
    provider = ChatkeepHistoryProvider(store)
    await talk(provider, scripted, ["a", "b"], user("first?"), user("second?"))
    history = await provider.get_messages("talk")
    once_more = copy.copy(history[place])
    if edited:
        once_more.contents = [Content.from_text("first, and only?")]
    found = await talk(provider, scripted, ["c"], [*history, once_more, user("third?")])
    assert found == [*said(history), (once_more.role, once_more.text), ("user", "third?"), ("assistant", "c")]


async def test_a_history_that_was_read_and_changed_in_the_middle_is_still_known(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store)
    await talk(provider, scripted, ["a", "b"], user("my number is 4711"), user("second?"))
    history = await provider.get_messages("talk")
    history[0].contents = [Content.from_text("my number is ***")]
    found = await talk(provider, scripted, ["c"], [*history, user("third?")])
    assert found[0] == ("user", "my number is 4711")
    assert found[4:] == [("user", "third?"), ("assistant", "c")]


async def test_a_changed_copy_of_an_answer_that_was_read_is_stored_by_hand(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store)
    await talk(provider, scripted, ["a"], user("1"))
    changed = copy.deepcopy((await provider.get_messages("talk"))[1])
    changed.contents = [Content.from_text("a, in other words")]
    await provider.save_messages("talk", [changed])
    assert [message.text for message in await provider.get_messages("talk")] == ["1", "a", "a, in other words"]


async def test_a_question_asked_anew_from_a_history_that_was_read_adds_the_question_alone(
    store: Any, scripted: Any
) -> None:
    provider = ChatkeepHistoryProvider(store)
    await talk(provider, scripted, ["a", "b"], user("1"), user("2"))
    history = await provider.get_messages("talk")
    found = await talk(provider, scripted, ["c"], history[:-1])
    assert found == [*said(history), ("user", "2"), ("assistant", "c")]


@pytest.mark.parametrize("by", ["clear", "delete"])
async def test_what_was_read_before_all_was_taken_out_is_new(store: Any, scripted: Any, by: str) -> None:
    provider = ChatkeepHistoryProvider(store)
    await talk(provider, scripted, ["a", "b"], user("1"), user("2"))
    history = await provider.get_messages("talk")
    await (provider.clear("talk") if by == "clear" else provider.session("talk").delete())
    await provider.save_messages("talk", [Message("system", ["summary"]), *history[2:]])
    assert said(await provider.get_messages("talk")) == [("system", "summary"), *said(history[2:])]


async def test_of_what_was_read_that_is_new_which_was_taken_out_meanwhile(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store)
    await talk(provider, scripted, ["a", "b"], user("1"), user("2"))
    history = await provider.get_messages("talk")
    await provider.log("talk").pop(2)
    found = await talk(provider, scripted, ["c"], [*history, user("3")])
    assert found == [*said(history), ("user", "3"), ("assistant", "c")]


async def test_what_was_read_and_has_been_put_into_a_summary_since_is_known(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store)
    await talk(provider, scripted, ["a", "b", "c"], user("1"), user("2"), user("3"))
    history = await provider.get_messages("talk")
    await provider.log("talk").replace_prefix(4, [Message("system", ["summary"])])
    found = await talk(provider, scripted, ["d"], [*history, user("4")])
    assert found == [("system", "summary"), *said(history[4:]), ("user", "4"), ("assistant", "d")]


async def test_behind_a_history_that_was_read_to_its_end_the_same_turn_is_another(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store)
    await talk(provider, scripted, ["ok"], user("ok"))
    turn = [user("ok"), answer("ok")]  # from an agent of another kind
    found = await talk(provider, scripted, ["x"], [*await provider.get_messages("talk"), *turn, user("next")])
    assert found == [*said(turn), *said(turn), ("user", "next"), ("assistant", "x")]


async def test_a_question_that_was_stored_first_is_stored_once_and_asked_again_when_it_is_answered(
    store: Any, scripted: Any
) -> None:
    provider = ChatkeepHistoryProvider(store)
    await provider.save_messages("talk", [user("1")])
    history = await provider.get_messages("talk")
    assert await talk(provider, scripted, ["a"], history) == [("user", "1"), ("assistant", "a")]
    assert await talk(provider, scripted, ["b"], history) == [
        ("user", "1"),
        ("assistant", "a"),
        ("user", "1"),
        ("assistant", "b"),
    ]


async def test_the_last_that_is_asked_is_never_taken_for_what_is_stored(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store, store_outputs=False)
    example = [user("2 + 2?"), answer("4"), user("3 + 3?")]
    found = await talk(provider, scripted, ["6", "6"], example, over_a_wire(example))
    assert found == [*said(example), ("user", "3 + 3?")]


# A subclass


async def test_a_provider_that_saves_a_run_in_parts_loses_none(store: Any, scripted: Any) -> None:
    provider = Edited(store)
    for _ in range(2):
        await talk(provider, scripted, ["ok"], [Message("system", ["Be short."]), user("ok")])
    assert said(await provider.get_messages("talk")) == [("user", "ok"), ("assistant", "ok")] * 2


async def test_a_provider_that_saves_copies_of_a_run_knows_a_transcript_all_the_same(store: Any, scripted: Any) -> None:
    class Copying(ChatkeepHistoryProvider):
        async def save_messages(self, session_id: Any, messages: Any, **kwargs: Any) -> None:
            await super().save_messages(session_id, over_a_wire(messages), **kwargs)

    provider = Copying(store)
    await talk(provider, scripted, ["ok"], user("ok"))
    found = await talk(provider, scripted, ["ok"], [user("ok"), answer("ok"), user("ok")])
    assert found == [("user", "ok"), ("assistant", "ok")] * 2


async def test_a_provider_that_leaves_out_answers_and_saves_copies_knows_a_transcript(
    store: Any, scripted: Any
) -> None:
    class Brief(ChatkeepHistoryProvider):
        async def save_messages(self, session_id: Any, messages: Any, **kwargs: Any) -> None:
            own = [message for message in over_a_wire(messages) if message.text]
            await super().save_messages(session_id, own, **kwargs)

    provider = Brief(store)
    found = await talk(provider, scripted, [calls("Oslo"), "sunny", calls("Rome"), "bye"], user("1"))
    found = await talk(provider, scripted, [calls("Rome"), "bye"], [user("1"), answer("sunny"), user("2")])
    assert found == [("user", "1"), ("assistant", "sunny"), ("user", "2"), ("assistant", "bye")]


async def test_a_provider_that_adds_a_note_of_its_own_behind_the_answers_loses_none(store: Any, scripted: Any) -> None:
    class Noting(ChatkeepHistoryProvider):
        async def save_messages(self, session_id: Any, messages: Any, **kwargs: Any) -> None:
            await super().save_messages(session_id, [*messages, Message("system", ["saved"])], **kwargs)

    provider = Noting(store)
    found = await talk(provider, scripted, [answer("a", "m"), answer("b", "m")], user("1"), user("2"))
    assert found == [
        ("user", "1"), ("assistant", "a"), ("system", "saved"), ("user", "2"), ("assistant", "b"), ("system", "saved"),
    ]  # fmt: skip


async def test_two_providers_of_one_log_save_a_run_each(store: Any, scripted: Any) -> None:
    questions = ChatkeepHistoryProvider(store, store_outputs=False)
    answers = ChatkeepHistoryProvider(store, store_inputs=False, load_messages=False)
    agent = Agent(scripted("a"), context_providers=[questions, answers])
    await agent.run("1", session=AgentSession(session_id="both"))
    assert sorted(said(await questions.get_messages("both"))) == [("assistant", "a"), ("user", "1")]


# Whole transcripts, as chat clients send them


async def test_a_client_that_drops_tools_and_white_space_adds_only_what_is_new(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store)
    asking = Message("assistant", [Content.from_text("Let me see."), *calls("Oslo", "Rome")])
    reasoned = Message("assistant", [Content.from_text_reasoning(text="so"), Content.from_text("It is  sunny.\n")])
    await talk(provider, scripted, [asking, calls("Bonn"), reasoned], user("How is Oslo?"))
    kept = [user(" How is Oslo?"), answer("Let me see."), answer("It is sunny.")]
    found = await talk(provider, scripted, ["Bye"], [*kept, user("Thanks, bye")])
    assert found[5:] == [("assistant", "It is  sunny.\n"), ("user", "Thanks, bye"), ("assistant", "Bye")]
    assert len(found) == 8


@pytest.mark.parametrize("new", [False, True], ids=["one prompt", "a new one each time"])
async def test_a_client_that_sends_a_system_prompt_each_time_adds_only_what_is_new(
    store: Any, scripted: Any, new: bool
) -> None:
    provider, transcript = ChatkeepHistoryProvider(store), list[Message]()
    agent, session = Agent(scripted("a", "b", "c"), context_providers=[provider]), AgentSession(session_id="prompt")
    for number in range(3):
        prompt = Message("system", [f"The time is {number if new else 0}."])
        transcript = [*over_a_wire(transcript), user(f"question {number}")]
        transcript += (await agent.run([prompt, *transcript], session=session)).messages
    found = said(await provider.get_messages("prompt"))
    assert [each for each in found if each[0] != "system"] == said(transcript)
    assert len(found) == 6 + (3 if new else 1)


async def test_what_stands_before_a_transcript_and_was_never_stored_is_new(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store)
    await talk(provider, scripted, ["hello"], user("hi"))
    examples = [user("bye"), answer("see you")]
    found = await talk(provider, scripted, ["x"], [*examples, user("hi"), answer("hello"), user("so?")])
    assert found == [
        ("user", "hi"), ("assistant", "hello"), *said(examples), ("user", "so?"), ("assistant", "x"),
    ]  # fmt: skip


@pytest.mark.parametrize("by", ["the caller's own", "what came over a wire", "the messages read"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("each_call", [False, True], ids=["each run", "each call"])
async def test_a_transcript_with_calls_of_tools_adds_only_what_is_new(
    store: Any, scripted: Any, each_call: bool, stream: bool, by: str
) -> None:
    provider, look = ChatkeepHistoryProvider(store), Content.from_text("I look")
    agent = Agent(
        scripted(calls("Oslo"), "sunny", [look, *calls("Rome", "Bonn")], calls("Bern"), "sunny", "bye"),
        tools=[weather],
        context_providers=[provider],
        require_per_service_call_history_persistence=each_call,
    )
    transcript: list[Message] = []
    for question in "123":
        if by == "what came over a wire":
            transcript = over_a_wire(transcript)
        elif by == "the messages read":
            transcript = await provider.get_messages("tools")
        transcript = [*transcript, user(question)]
        session = AgentSession(session_id="tools")
        if stream:
            streaming = agent.run(transcript, session=session, stream=True)
            response = await streaming.get_final_response()
        else:
            response = await agent.run(transcript, session=session)
        transcript += response.messages
    kept = said(await provider.get_messages("tools"))
    assert [text for _, text in kept if isinstance(text, str)] == ["1", "sunny", "2", "I look", "sunny", "3", "bye"]
    assert len(kept) == 12


@pytest.mark.parametrize("named", ["questions", "answers"])
async def test_a_client_with_ids_for_the_questions_alone_or_the_answers_adds_only_what_is_new(
    store: Any, scripted: Any, named: str
) -> None:
    def one(role: str, text: str) -> Message:
        return Message(role, [text], message_id=text if (role == "user") == (named == "questions") else None)

    provider = ChatkeepHistoryProvider(store)
    steps = [calls("Oslo"), one("assistant", "a"), one("assistant", "b")]
    await talk(provider, scripted, steps, one("user", "1"), one("user", "2"))
    transcript = over_a_wire([one("user", "1"), one("assistant", "a"), one("user", "edited")])
    found = await talk(provider, scripted, ["c"], transcript)
    assert [text for _, text in found if isinstance(text, str)] == ["1", "a", "2", "b", "edited", "c"]
    assert len(found) == 8


@pytest.mark.parametrize("sent", ["Hel lo", "Hello", " Hello\n"])
async def test_texts_are_the_same_whatever_stands_between_their_parts(store: Any, scripted: Any, sent: str) -> None:
    provider = ChatkeepHistoryProvider(store)
    parts = Message("assistant", [Content.from_text("Hel"), Content.from_text("lo")])
    await talk(provider, scripted, [parts], user("1"))
    assert len(await talk(provider, scripted, ["x"], [user("1"), answer(sent), user("2")])) == 4


async def test_a_picture_of_the_agent_that_stands_in_a_known_transcript_is_new(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store)
    await talk(provider, scripted, ["yes"], user("1"))
    picture = Message("assistant", [Content.from_uri("https://example.org/a.png", media_type="image/png")])
    found = await talk(provider, scripted, ["x"], [user("1"), picture, answer("yes"), user("2")])
    assert ("assistant", ["uri"]) in found


async def test_a_log_full_of_tool_calls_is_read_as_far_back_as_the_transcript_goes(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store)
    steps = [step for number in range(4) for step in (*[calls("Oslo")] * 15, f"answer {number}")]
    transcript: list[Message] = []
    agent, session = (
        Agent(scripted(*steps), tools=[weather], context_providers=[provider]),
        AgentSession(session_id="t"),
    )
    for number in range(4):
        transcript = [*transcript, user(f"question {number}")]
        transcript = [*transcript, answer((await agent.run(transcript, session=session)).text)]
    assert await provider.log("t").count() == 4 * 32


# Saves whose answer was lost


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("each_call", [False, True], ids=["each run", "each call"])
async def test_a_transcript_with_known_ids_whose_save_is_tried_again_is_stored_once(
    store: Any, scripted: Any, monkeypatch: pytest.MonkeyPatch, each_call: bool, stream: bool
) -> None:
    provider = Persistent(store)
    agent = Agent(
        scripted(answer("a", "m"), calls("Oslo"), answer("b", "m"), answer("c", "m")),
        tools=[weather],
        context_providers=[provider],
        require_per_service_call_history_persistence=each_call,
    )
    session = AgentSession(session_id="lost")
    await ask(agent, user("1", "u"), session, stream=stream)
    lose_answer(store, monkeypatch)
    await ask(agent, [user("1", "u"), answer("a", "m"), user("2", "u")], session, stream=stream)
    lose_answer(store, monkeypatch)
    await ask(agent, "3", session, stream=stream)
    found = said(await provider.get_messages("lost"))
    assert [text for _, text in found if isinstance(text, str)] == ["1", "a", "2", "b", "3", "c"]
    assert len(found) == 8


async def test_a_stream_whose_save_was_lost_is_stored_once_when_its_response_is_asked_for(
    store: Any, scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = ChatkeepHistoryProvider(store)
    agent = Agent(scripted("one two"), context_providers=[provider])
    lose_answer(store, monkeypatch)
    streaming = agent.run("1", session=AgentSession(session_id="lost"), stream=True)
    with pytest.raises(OutcomeUnknownError):
        _ = [update async for update in streaming]
    assert (await streaming.get_final_response()).text == "one two"
    assert said(await provider.get_messages("lost")) == [("user", "1"), ("assistant", "one two")]


async def test_a_save_by_hand_that_was_lost_is_known_though_others_were_saved_meanwhile(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = ChatkeepHistoryProvider(store)
    turn, more = [user("1"), answer("a")], [user("3")]
    for lost in (turn, more):
        lose_answer(store, monkeypatch)
        with pytest.raises(OutcomeUnknownError):
            await provider.save_messages("lost", lost)
    await provider.save_messages("lost", [user("2")])
    await provider.save_messages("another", turn)
    for lost in (turn, more):
        await provider.save_messages("lost", lost)
    assert [message.text for message in await provider.get_messages("lost")] == ["1", "a", "3", "2"]
    assert len(await provider.get_messages("another")) == 2


async def test_a_run_whose_provider_saves_again_itself_is_stored_once(
    store: Any, scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Persistent(ChatkeepHistoryProvider):
        async def save_messages(self, *arguments: Any, **kwargs: Any) -> None:
            try:
                await super().save_messages(*arguments, **kwargs)
            except OutcomeUnknownError:
                await super().save_messages(*arguments, **kwargs)

    provider = Persistent(store)
    lose_answer(store, monkeypatch)
    assert await talk(provider, scripted, ["a"], user("1")) == [("user", "1"), ("assistant", "a")]


async def test_a_save_by_hand_that_was_lost_is_known_after_a_repetition_that_failed(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, turn = ChatkeepHistoryProvider(store), [user("1"), answer("a")]
    lose_answer(store, monkeypatch)
    with pytest.raises(OutcomeUnknownError):
        await provider.save_messages("lost", turn)
    commit = store.backend.commit

    async def refuse(*_: Any) -> Any:
        raise StoreUnavailableError("nothing was written")

    monkeypatch.setattr(store.backend, "commit", refuse)
    with pytest.raises(StoreUnavailableError):
        await provider.save_messages("lost", turn)
    monkeypatch.setattr(store.backend, "commit", commit)
    await provider.save_messages("lost", turn)
    assert len(await provider.get_messages("lost")) == 2
    await provider.save_messages("lost", turn)
    assert len(await provider.get_messages("lost")) == 4, "which is a turn of its own again"


async def test_under_a_batch_id_of_the_callers_all_is_stored_once(store: Any) -> None:
    provider = ChatkeepHistoryProvider(store)
    for part in ("1", "2"):
        for _ in range(3):
            await provider.save_messages("moved", [user("ok", "u"), answer(part, "m")], batch_id=f"part {part}")
    assert said(await provider.get_messages("moved")) == [
        ("user", "ok"), ("assistant", "1"), ("user", "ok"), ("assistant", "2"),
    ]  # fmt: skip


# What cannot be stored


@pytest.mark.parametrize(
    "content",
    [
        Content.from_function_approval_request(
            id="r", function_call=Content.from_function_call("c", "f", additional_properties={"o": object(), "kept": 1})
        ),
        Content.from_text(
            "hi", annotations=[{"type": "citation", "additional_properties": {"o": object(), "kept": 1}}]
        ),
    ],
    ids=["a call that is to be approved", "annotations"],
)
async def test_notes_deep_in_an_answer_that_cannot_be_stored_are_left_out(
    store: Any, scripted: Any, content: Content
) -> None:
    provider = ChatkeepHistoryProvider(store)
    await talk(provider, scripted, [Message("assistant", [content])], user("1"))
    (found,) = (await provider.get_messages("talk"))[1].contents
    inner = found.function_call or (found.annotations or ())[0]
    notes = inner.additional_properties if isinstance(inner, Content) else inner.get("additional_properties")
    assert notes == {"kept": 1}


async def test_a_note_beside_an_answer_that_cannot_be_stored_is_left_out_and_said(
    store: Any, scripted: Any, caplog: pytest.LogCaptureFixture
) -> None:
    provider = ChatkeepHistoryProvider(store)
    content = Content.from_text("hi", additional_properties={"logprobs": object(), "kept": 1})
    notes = {"score": float("nan"), "region": "north"}
    await talk(provider, scripted, [Message("assistant", [content], additional_properties=notes)], user("hello"))
    found = (await provider.get_messages("talk"))[1]
    assert (found.text, found.additional_properties, found.contents[0].additional_properties) == (
        "hi", {"region": "north"}, {"kept": 1},
    )  # fmt: skip
    assert "session 'talk': a note beside an answer cannot be stored, and was left out: messages[1]" in caplog.text
    caplog.clear()
    with pytest.raises(ValueError, match=r"messages\[0\].*logprobs"):
        await talk(provider, scripted, [], Message("user", [content]))
    assert len(await provider.get_messages("talk")) == 2
    assert caplog.text == "", "nothing was left out, and nothing saved"


# All of it at random


NAMES: dict[str, tuple[str | None, str | None]] = {
    "none": (None, None),
    "for all": ("q{}", "a{}"),
    "for the questions": ("q{}", None),
    "for the answers": (None, "a{}"),
    "one for all answers": (None, "m"),
    "one for all": ("m", "m"),  # and then nobody can tell a question that is sent again from the same words once more
}


@pytest.mark.parametrize("names", NAMES)
async def test_whatever_a_client_hands_over_again_a_conversation_is_kept_as_it_was(
    store: Any, scripted: Any, names: str
) -> None:
    for seed in range(6):
        chance, provider, session_id = random.Random(f"{names} {seed}"), ChatkeepHistoryProvider(store), f"s{seed}"
        drops_tools, each_call = chance.random() < 0.5, chance.random() < 0.3
        words = "{}" if names == "one for all" else chance.choice(["ok", "{}"])
        asked, named = NAMES[names]
        client = scripted()
        agent = Agent(
            client,
            tools=[weather],
            context_providers=[provider],
            require_per_service_call_history_persistence=each_call,
        )
        expected: list[tuple[str, Any]] = []
        transcript: list[Message] = []
        for number in range(10):
            question = user(words.format(f"question {number}"), asked and asked.format(number))
            last = answer(words.format(f"answer {number}"), named and named.format(number))
            client.script = [*[calls("Oslo")] * chance.choice([0, 0, 1, 2]), last]
            work = len(client.script) - 1
            way = chance.choice(["alone", "own", "over a wire", "its end", "what was read"])
            before = await provider.get_messages(session_id) if way == "what was read" else transcript
            if way in ("over a wire", "its end"):
                before = over_a_wire(before)[-chance.randint(2, 5) if way == "its end" else 0 :]
            elif way == "alone":
                before = []
            if drops_tools and way != "what was read":
                before = [message for message in before if message.text]
            response = await agent.run([*before, question], session=AgentSession(session_id=session_id))
            transcript = [*transcript, question, *response.messages]
            expected += [
                ("user", question.text),
                *[("assistant", ["function_call"]), ("tool", ["function_result"])] * work,
            ]
            expected.append(("assistant", last.text))
            found = said(await provider.get_messages(session_id))
            assert found == expected, (seed, number, way, drops_tools, each_call)
