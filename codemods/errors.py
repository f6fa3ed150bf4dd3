"""What the user may get wrong, as values: every reason for a refusal names its place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One reason why nothing was written.

    Attributes:
      message: what is wrong and what to do about it.
      path: file or directory as the user knows it, where one is to blame.
      line: 1-based line in ``path``, where one is to blame.
    """

    message: str
    path: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        place = [str(part) for part in (self.path, self.line) if part is not None]
        return ": ".join([":".join(place), self.message] if place else [self.message])


class MigrateError(Exception):
    """The migration cannot run; nothing has been written. Carries every problem found."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems
