"""What boto3's errors mean: whether to ask again, whether a change may have been made, and what is to be told."""

from __future__ import annotations

from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    MetadataRetrievalError,
    NoAuthTokenError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    ProxyConnectionError,
    ReadTimeoutError,
    RefreshWithMFAUnsupportedError,
    SSOError,
    TokenRetrievalError,
)

from chatkeep.errors import StoreError, StoreTimeoutError, StoreUnavailableError

DRIVER_ERRORS: tuple[type[Exception], ...] = (BotoCoreError, ClientError)

UNREACHED = (ConnectTimeoutError, EndpointConnectionError, ProxyConnectionError)
"""With these, nobody was there to take the request."""
MISSING_CREDENTIALS = (
    CredentialRetrievalError,
    MetadataRetrievalError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    RefreshWithMFAUnsupportedError,
    SSOError,
    TokenRetrievalError,
)
"""There are none, or they have expired and cannot be renewed."""
NOT_SENT = (*UNREACHED, *MISSING_CREDENTIALS, NoRegionError, ParamValidationError, ProfileNotFound)
BUSY = {
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "ReplicatedWriteConflictException",
    "SlowDown",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
    "TransactionConflictException",
    "TransactionInProgressException",
}
"""The codes of a table that has too much to do, or of an item that a transaction holds: nothing was done."""
REFUSED = {
    "AccessDenied",
    "AccessDeniedException",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "KMSAccessDeniedException",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "NotAuthorized",
    "OptInRequired",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
CREDENTIALS = (
    "boto3 finds no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, give a profile (?profile=…), or run "
    "where a role gives them"
)


def code_of(error: BaseException) -> str:
    """The code of an error of the service's; "" for any other."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def _of_response(error: BaseException, name: str) -> Any:
    response: Any = error.response if isinstance(error, ClientError) else {}
    return response.get("ResponseMetadata", {}).get(name)


def was_repeated(error: ClientError) -> bool:
    """Whether the client has sent the request more than once by itself."""
    return bool(_of_response(error, "RetryAttempts"))


def is_busy(error: Exception) -> bool:
    """Whether nothing was done, and will be if it is asked for a little later."""
    return code_of(error) in BUSY


def is_lost(error: Exception) -> bool:
    """Whether it is not known what was done: the service failed in the middle, or its answer did not come."""
    if isinstance(error, ClientError):
        return not is_busy(error) and (_of_response(error, "HTTPStatusCode") or 0) >= 500
    return not isinstance(error, NOT_SENT)


def translated(error: Exception, place: str) -> StoreError:
    """The error as chatkeep's own. `place` is the URL."""
    said, code = " ".join(str(error).split()), code_of(error)
    if isinstance(error, MISSING_CREDENTIALS):
        return StoreUnavailableError(f"{place}: {CREDENTIALS} ({said})")
    if isinstance(error, NoRegionError):
        return StoreUnavailableError(f"{place}: the region is missing: dynamodb://eu-west-1/Table, or AWS_REGION")
    if isinstance(error, (ReadTimeoutError, ConnectTimeoutError)):
        return StoreTimeoutError(f"{place} did not answer in time: {said}")
    if code == "ResourceNotFoundException":
        return StoreUnavailableError(
            f"{place}: there is no such table, or an index of it is missing ({said}): `chatkeep ping` says what is; "
            "?create=true makes the table"
        )
    if code in REFUSED:
        return StoreUnavailableError(f"{place}: these credentials are refused: {said}")
    if code in BUSY or is_lost(error) or isinstance(error, UNREACHED):
        return StoreUnavailableError(f"{place} cannot be reached, or has too much to do: {said}")
    if "size" in said and code == "ValidationException" and "exceeded" in said:
        return StoreError(
            f"{place}: a session has so many logs that what must be known of them fits no item (400 KB): {said}"
        )
    if code == "ValidationException" and "key element" in said:
        return StoreError(
            f"{place}: the table has other keys than chatkeep's, which are pk and sk, both binary: {said}"
        )
    return StoreError(f"{place}: {said} ({code or type(error).__name__})")
