"""What is wrong with a resource, field by field, in sentences that its author can act on.

A value is shown only where it cannot be a secret: not that of an unknown field, nor of an environment variable.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

LONGEST_SHOWN = 80
# What may hold a secret: these fields, and all below them.
HIDDEN = re.compile(r"environmentVariables|endpointUrl|customHeaders|\.env\b|token|password|secretKey", re.IGNORECASE)
TYPES = {
    "string": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping of fields",
    "model": "a mapping of fields",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One field: where, what is there, what belongs there, and what to do when that is not plain from it."""

    path: str
    found: str
    expected: str
    advice: str = ""

    def __str__(self) -> str:
        end = "" if self.expected.endswith(".") else "."
        return f"{self.path} is {self.found}; expected {self.expected}{end}" + (
            f" {self.advice}" if self.advice else ""
        )


class InvalidResource(ValueError):
    """A resource that cannot be used as it is; nothing was changed. `problems` has every bad field."""

    def __init__(self, subject: str, problems: Iterable[Problem]) -> None:
        self.subject, self.problems = subject, tuple(problems)
        count = len(self.problems)
        head = f"{subject} is refused, nothing was changed: {count} field{'s are' if count > 1 else ' is'} wrong"
        super().__init__("\n".join((head, *(f"  {problem}" for problem in self.problems))))

    def __reduce__(self) -> tuple[type[InvalidResource], tuple[str, tuple[Problem, ...]]]:
        return type(self), (self.subject, self.problems)


@dataclass(frozen=True, slots=True)
class Hint:
    """What belongs into a field, better said than a validator can."""

    expected: str
    advice: str = ""


def shown(value: object, path: str = "") -> str:
    """`value` as the author wrote it, shortened; its type alone where it may be a secret."""
    if value is None:
        return "null"
    if HIDDEN.search(path) and not isinstance(value, bool | int | float):
        return f"a {type(value).__name__} that is not shown here"
    text = json.dumps(value, ensure_ascii=False, default=str)
    if len(text) > LONGEST_SHOWN:
        return f"{text[:LONGEST_SHOWN]}… ({len(text)} characters)"
    return text


def problems_of(errors: Iterable[ErrorDetails], hints: Mapping[str, Hint], fields: Collection[str]) -> list[Problem]:
    """pydantic's errors below `spec` as ours. fields: every known field name, for "did you mean"."""
    return [_problem(error, hints, fields) for error in errors]


def _problem(error: ErrorDetails, hints: Mapping[str, Hint], fields: Collection[str]) -> Problem:
    path = "spec" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"])
    name = str(error["loc"][-1]) if error["loc"] else "spec"
    hint = hints.get(re.sub(r"\[\d+\]", "", path).removeprefix("spec."))
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, fields, n=1, cutoff=0.75)
        advice = f"Did you mean {near[0]}?" if near else "Remove it, or check its indentation."
        return Problem(path, "no field that is known here", "one of the resource's own fields", advice)
    if error["type"] == "missing":
        return Problem(path, "missing", hint.expected if hint else "a value", hint.advice if hint else "")
    found = shown(error["input"], path)
    if hint:
        return Problem(path, found, hint.expected, hint.advice)
    return Problem(path, found, _expected(error))


def _expected(error: ErrorDetails) -> str:
    context: Mapping[str, Any] = error.get("ctx") or {}
    kind = error["type"]
    match kind:
        case "greater_than_equal":
            return f"{context['ge']} or more"
        case "less_than_equal":
            return f"{context['le']} or less"
        case "greater_than":
            return f"more than {context['gt']}"
        case "string_pattern_mismatch":
            return f"text that matches {context['pattern']}"
        case "string_too_long" | "too_long":
            return f"at most {context['max_length']} characters or items"
        case "string_too_short" | "too_short":
            return f"at least {context['min_length']} characters or items"
        case "enum" | "literal_error":
            return f"one of {str(context['expected']).replace(chr(39), '').replace(' or ', ', ')}"
        case "value_error":
            return f"settings that belong together: {context['error']}"
    stem = kind.removesuffix("_type").removesuffix("_parsing").removesuffix("_from_float")
    return TYPES.get(stem, error["msg"])
