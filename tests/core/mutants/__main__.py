"""``python -m mutants REPORT [name or clause …]``, in the folder above: hold the trial, write a report in JSON."""

from __future__ import annotations

import sys
from pathlib import Path

from .judge import hold_trial

sys.exit(hold_trial(Path(sys.argv[1]), sys.argv[2:]))
