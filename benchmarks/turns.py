"""The text that is stored: turns of recorded conversations, a question and an answer each.

``turns.jsonl`` holds ten turns of three conversations of an airline's agent with simulated customers, from the
historical trajectories of tau-bench (Sierra, MIT licence, 2024). Names and bookings in them are made up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

Turn = tuple[str, str]
"""What the user asked and what the assistant answered: about 60 and 300 characters."""

TURNS = Path(__file__).parent / "turns.jsonl"


def turns() -> Iterator[Turn]:
    """The turns, again and again."""
    lines = TURNS.read_text(encoding="utf-8").splitlines()
    return cycle([(turn["user"], turn["assistant"]) for turn in map(json.loads, lines)])
