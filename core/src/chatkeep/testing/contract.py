"""The whole contract, put together from its parts."""

from __future__ import annotations

from .editing import Editing
from .fidelity import Fidelity
from .isolation import Isolation
from .lifecycle import Lifecycle
from .order import Order
from .reading import Reading
from .retention import Retention
from .state import StateClauses


class StoreContract(Order, Retention, Reading, Fidelity, StateClauses, Isolation, Lifecycle, Editing):
    """Every clause that one process can show. Subclass it and give it the fixture `url`.

    ``test_…`` methods cannot be overridden; where a backend cannot keep one, say so with
    ``test_… = xfail(reason=…)``. Overridable: the fixtures `url`, `options` and `unreachable_url`, the method
    `pass_time`, and `tick`.
    """
