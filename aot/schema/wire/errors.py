"""The body of every refusal, and of a failed build."""

from typing import Any

from aot.errors import AotError, error_from_wire
from aot.schema.codec import Response


class ErrorBody(Response, kw_only=True):
    code: str
    message: str
    hint: str = ""
    details: dict[str, Any] = {}

    @classmethod
    def of(cls, error: AotError) -> "ErrorBody":
        return cls(code=error.code, message=error.message, hint=error.hint, details=error.details)

    def to_error(self) -> AotError:
        """The error that the other side meant, as the same class."""
        return error_from_wire(self.code, self.message, hint=self.hint, details=self.details)
