"""What is wrong with a resource, field by field, in sentences that its author can act on.

A value is shown only where it cannot be a secret: not that of an unknown field, nor of an address or a variable.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

LONGEST_SHOWN = 80
HIDDEN = re.compile(r"environmentVariables|endpointUrl|customHeaders", re.IGNORECASE)
# What belongs into a field, where that can be said better than a validator can.
EXPECTED = {
    "prefixLength": "a whole number from 1024 to 65536",
    "concurrencyThreshold": "a whole number from 1 to 1024",
    "containerPort": "a port from 1 to 65535",
    "replicas": "a whole number from 0 to 10000",
    "value": "a whole number from 1 up",
    "deadlineSeconds": "more than 0 and at most 604800 seconds (a week)",
    "modelName": 'at most 63 letters, digits and inner "-"',
    "endpointName": 'at most 63 letters, digits and inner "-"',
    "bucketName": "the name of a bucket: 3 to 63 lower-case letters, digits, dots and hyphens, without s3://",
    "modelId": "org/model, as in meta-llama/Llama-3.1-8B-Instruct",
    "commitSHA": "a full commit: 40 lower-case hex digits",
    "instanceType": "a type that begins with ml., such as ml.g5.24xlarge",
    "endpointUrl": "http:// or https:// and a host, without user or password",
}
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
        return f"{self.path} is {self.found}; expected {self.expected}." + (f" {self.advice}" if self.advice else "")


class InvalidResource(ValueError):
    """A resource that is refused; `problems` has every bad field."""

    def __init__(self, what: str, problems: Iterable[Problem]) -> None:
        self.what, self.problems = what, tuple(problems)
        super().__init__("\n".join((f"{what} is refused, nothing was changed:", *(f"  {p}" for p in self.problems))))

    def __reduce__(self) -> tuple[type[InvalidResource], tuple[str, tuple[Problem, ...]]]:
        return type(self), (self.what, self.problems)


def wrong(field: str, found: object, expected: str, advice: str = "") -> PydanticCustomError:
    """What a validator raises about `field` below its own place ("" for its own)."""
    context = {"field": field, "found": found, "expected": expected, "advice": advice}
    return PydanticCustomError("wrong", "expected {expected}", context)


def problems_of(errors: Iterable[ErrorDetails], fields: Collection[str]) -> list[Problem]:
    """pydantic's errors below `spec` as ours. fields: every known field name, for "did you mean"."""
    return [_problem(error, fields) for error in errors]


def shown(value: object, path: str = "") -> str:
    """`value` as its author wrote it, shortened; its type alone where it may be a secret."""
    if value is None:
        return "null"
    if HIDDEN.search(path) and not isinstance(value, bool | int | float):
        return "not as it should be (it may hold a secret, so it is not shown)"
    text = json.dumps(value, ensure_ascii=False, default=str)
    if len(text) > LONGEST_SHOWN:
        return f"{text[:LONGEST_SHOWN]}… ({len(text)} characters)"
    return text


def _problem(error: ErrorDetails, fields: Collection[str]) -> Problem:
    context: Mapping[str, Any] = error.get("ctx") or {}
    path = "spec" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"])
    match error["type"]:
        case "wrong":
            path += f".{context['field']}" if context["field"] else ""
            found = "missing" if context["found"] is None else shown(context["found"], path)
            return Problem(path, found, context["expected"], context["advice"])
        case "extra_forbidden":
            near = difflib.get_close_matches(str(error["loc"][-1]), fields, n=1, cutoff=0.75)
            advice = f"Did you mean {near[0]}?" if near else "Remove it, or check its indentation."
            return Problem(path, "unknown", "a field of this resource", advice)
        case "missing":
            return Problem(path, "missing", EXPECTED.get(str(error["loc"][-1]), "a value"), "It is required.")
        case "string_type" if isinstance(error["input"], bool | int | float):
            return Problem(path, shown(error["input"], path), "text", "Put it in quotes.")
    expected = EXPECTED.get(str(error["loc"][-1]) if error["loc"] else "") or _expected(error, context)
    return Problem(path, shown(error["input"], path), expected)


def _expected(error: ErrorDetails, context: Mapping[str, Any]) -> str:
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
        case "string_too_long":
            return f"at most {context['max_length']} characters"
        case "string_too_short":
            return f"at least {context['min_length']} character"
        case "enum" | "literal_error":
            return f"one of {str(context['expected']).replace(chr(39), '').replace(' or ', ', ')}"
        case "value_error":
            return f"settings that belong together: {context['error']}"
    stem = kind.removesuffix("_from_float").removesuffix("_type").removesuffix("_parsing")
    return TYPES.get(stem, error["msg"])
