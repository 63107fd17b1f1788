"""The contract cannot be weakened quietly, and it has a test for each of its clauses."""

from __future__ import annotations

import pytest

from chatkeep.testing import StoreContract, clause, xfail
from chatkeep.testing.clauses import Clauses

pytest_plugins = ["pytester"]

TESTS = {name: getattr(StoreContract, name) for name in dir(StoreContract) if name.startswith("test")}


class Small(Clauses):
    @clause(1, 2)
    async def test_promise(self) -> None:
        raise AssertionError("not kept")


def test_every_clause_has_a_test() -> None:
    shown = {number for test in TESTS.values() for number in test.clauses}
    assert shown == set(range(1, 29))


def test_every_test_says_which_clauses_it_shows() -> None:
    assert [name for name, test in TESTS.items() if not getattr(test, "clauses", ())] == []


def test_a_test_of_the_contract_cannot_be_replaced() -> None:
    for value in (lambda self: None, None, pytest.mark.skip(lambda self: None), property(lambda self: None)):
        with pytest.raises(TypeError, match=r"Weak\.test_promise would replace a test of the contract: rename it"):
            type("Weak", (Small,), {"test_promise": value})


def test_a_real_one_cannot_be_replaced_either() -> None:
    name = next(iter(TESTS))
    with pytest.raises(TypeError, match=name):
        type("Weak", (StoreContract,), {name: None})


def test_a_test_cannot_be_lost_because_two_parts_have_one_of_the_same_name() -> None:
    other = type("Other", (Clauses,), {"test_promise": Small.test_promise})
    with pytest.raises(TypeError, match=r"Small\.test_promise hides Other\.test_promise"):
        type("Both", (Small, other), {})


@pytest.mark.parametrize("reason", ["", "  ", "\n"])
def test_an_xfail_needs_a_reason(reason: str) -> None:
    with pytest.raises(TypeError, match="needs a reason"):
        xfail(reason=reason)
    with pytest.raises(TypeError):
        xfail()  # type: ignore[call-arg]


def test_an_xfail_needs_the_name_of_a_test_of_the_contract() -> None:
    with pytest.raises(TypeError, match=r"Weak\.test_promise_of_old excuses no test of the contract"):
        type("Weak", (Small,), {"test_promise_of_old": xfail(reason="no such thing")})


def test_a_backends_own_tests_and_fixtures_are_welcome() -> None:
    class Mine(Small):
        def test_of_my_own(self) -> None:
            return None

    assert Mine.test_promise is Small.test_promise


def test_an_excused_test_keeps_its_name_its_clauses_and_its_fixtures() -> None:
    class Weak(Small):
        test_promise = xfail(reason="no transactions")

    class Weaker(Weak):
        def test_of_my_own(self) -> None:
            return None

    assert Weaker.test_promise.__name__ == "test_promise"
    assert Weaker.test_promise.clauses == (1, 2)


SUITE = """
import pytest
from chatkeep.testing import StoreContract, clause, xfail
from chatkeep.testing.harness import Harness

class Part(Harness):
    @clause(1)
    async def test_kept(self, url):
        assert url == "echo://"

    @clause(2)
    @pytest.mark.parametrize("number", [1, 2])
    async def test_not_kept(self, url, number):
        assert url == number

class TestEcho(Part):
    @pytest.fixture
    def url(self):
        return "echo://"

    {excuse} = xfail(reason="Echo has no memory")
"""


FORGETFUL = """
import pytest
from chatkeep.testing import StoreContract

class TestForgetful(StoreContract):
    @pytest.fixture
    def url(self):
        return "memory://forgetful?max_messages=1"
"""


@pytest.mark.parametrize(
    ("excuse", "expected"),
    [("test_not_kept", {"passed": 1, "xfailed": 2}), ("test_kept", {"failed": 3})],
)
def test_an_excused_test_must_fail_and_one_that_passes_is_a_failure(
    pytester: pytest.Pytester, excuse: str, expected: dict[str, int]
) -> None:
    pytester.makeini("[pytest]\nasyncio_mode = strict\nasyncio_default_fixture_loop_scope = function")
    pytester.makepyfile(SUITE.format(excuse=excuse))
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-rx")
    result.assert_outcomes(**expected)
    if "xfailed" in expected:
        result.stdout.fnmatch_lines(["*Echo has no memory*"])


def test_a_failing_test_of_the_contract_shows_what_was_compared(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nasyncio_mode = strict\nasyncio_default_fixture_loop_scope = function")
    pytester.makepyfile(FORGETFUL)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-k", "test_equal_content_is_never_a_duplicate")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *assert [[]'ok'] == [[]'ok', 'ok', *"])
