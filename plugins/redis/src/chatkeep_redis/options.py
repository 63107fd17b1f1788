"""What a Redis store can be told, and which part of its URL is the driver's."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, SecretStr

from chatkeep.options import Count, Duration, StoreOptions

SCHEMES = {
    "redis": "redis",
    "rediss": "rediss",
    "unix": "unix",
    "redis+sentinel": "redis",
    "redis+cluster": "redis",
    "valkey": "redis",
    "valkeys": "rediss",
}
"""Our schemes, and what the driver calls them."""


def _without_braces(prefix: str) -> str:
    if "{" in prefix or "}" in prefix:
        raise ValueError("a prefix without braces, which would decide where in a cluster a key is kept")
    return prefix


class RedisOptions(StoreOptions):
    """Options of ``redis://`` URLs and their relatives."""

    driver_options: ClassVar[frozenset[str] | None] = frozenset(
        """
        client_name cluster_error_retry_attempts db decode_responses encoding encoding_errors health_check_interval
        legacy_responses lib_name lib_version max_connections min_other_sentinels password protocol reinitialize_steps
        require_full_coverage retry_on_timeout socket_connect_timeout socket_keepalive socket_read_size socket_timeout
        ssl ssl_ca_certs ssl_ca_data ssl_ca_path ssl_cert_reqs ssl_certfile ssl_check_hostname ssl_ciphers ssl_keyfile
        ssl_min_version ssl_password username
        """.split()  # noqa: SIM905 - thirty lines less
    )

    prefix: Annotated[str, AfterValidator(_without_braces)] = Field(
        "chatkeep:", description="What every key begins with."
    )
    connections: Annotated[int, Field(ge=1, le=64)] = Field(
        4, description="How many connections the store takes at most, of a cluster for each node."
    )
    wait_replicas: Count = Field(
        0, description="How many replicas must have confirmed a write before it is acknowledged."
    )
    wait_timeout: Duration = Field(1.0, description="How long a write waits for replicas to confirm it.")
    sentinel_username: str | None = Field(None, description="The user's name at the sentinels.")
    sentinel_password: SecretStr | None = Field(None, description="The password at the sentinels.")
