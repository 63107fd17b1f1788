import pytest

from chatkeep.testing import StoreContract


class TestEcho(StoreContract):
    url = pytest.fixture(lambda self, tmp_path: f"echo:///{tmp_path}/chat.journal")
