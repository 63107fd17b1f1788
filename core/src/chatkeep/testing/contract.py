"""The whole contract, put together from its parts."""

from __future__ import annotations

from .cancelling import Cancelling
from .editing import Editing
from .fidelity import Fidelity
from .isolation import Isolation
from .kills import Kills
from .lifecycle import Lifecycle
from .order import Order
from .processes import Processes
from .properties import Properties
from .reading import Reading
from .retention import Retention
from .sequences import Sequences
from .state import StateClauses


class StoreContract(
    Order,
    Cancelling,
    Retention,
    Reading,
    Fidelity,
    StateClauses,
    Isolation,
    Lifecycle,
    Editing,
    Processes,
    Kills,
    Sequences,
    Properties,
):
    """Every clause, shown in this process and in others. Subclass it and give it the fixture `url`.

    ``test_…`` methods cannot be overridden; where a backend cannot keep one, say so with
    ``test_… = xfail(reason=…)``. Overridable: the fixtures `url`, `options` and `unreachable_url`, the method
    `pass_time`, and `tick`.
    """
