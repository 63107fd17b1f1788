"""Placeholder."""

from __future__ import annotations

from .harness import Harness


class Editing(Harness):
    pass
