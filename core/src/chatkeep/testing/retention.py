"""Placeholder."""

from __future__ import annotations

from .harness import Harness


class Retention(Harness):
    pass
