"""Which files of a source make the model. Pure.

Patterns first: a path must match one of `include` (when there are any) and none of `exclude`. Then formats:
`SafeOnly` keeps weights that cannot run code when they are loaded, and the small files an engine reads beside
them; `Any` keeps everything. Pickles never come along with safetensors of the same directory or one above: they
are the same weights once more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from tasks.plan.types import Formats, Source
from tasks.sources.errors import SourceError

SAFE_WEIGHTS = frozenset({".safetensors", ".gguf"})
PICKLES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
# No ".py": code that comes with a model runs in the engine.
COMPANIONS = frozenset(
    {".json", ".jsonl", ".txt", ".model", ".spm", ".jinja", ".tiktoken", ".vocab", ".bpe", ".yaml", ".yml", ".md"}
)
COMPANION_NAMES = frozenset({"LICENSE", "NOTICE", "README"})


def select(source: Source, paths: Collection[str]) -> list[str]:
    """The paths to cache, sorted; SourceError when they would make no model."""
    if not paths:
        raise SourceError("NotFound", f"{source.uri} holds no file.", "Check the location and that the upload is done.")
    matching = [path for path in sorted(paths) if matches(source, path)]
    if not matching:
        raise SourceError(
            "NotFound",
            f"None of the {len(paths)} files of {source.uri} passes include {list(source.include)} and exclude "
            f"{list(source.exclude)}; the first file is {min(paths)!r}.",
            "Change the patterns; they are matched against the path inside the model.",
        )
    if source.formats is Formats.ANY:
        return without_duplicate_pickles(matching)
    safe = [path for path in matching if is_safe(path)]
    if not any(suffix(path) in SAFE_WEIGHTS for path in safe):
        raise _no_safe_weights(source, matching)
    return safe


def matches(source: Source, path: str) -> bool:
    return (not source.include or _any_pattern(source.include, path)) and not _any_pattern(source.exclude, path)


def is_safe(path: str) -> bool:
    """Whether a file is weights that cannot run code, or one of the small files an engine reads."""
    name = PurePosixPath(path).name
    # Mistral's tokenizers end with their version: tokenizer.model.v3.
    is_tokenizer = name.startswith("tokenizer.model")
    return is_tokenizer or suffix(path) in SAFE_WEIGHTS | COMPANIONS or name.split(".")[0].upper() in COMPANION_NAMES


def without_duplicate_pickles(paths: Iterable[str]) -> list[str]:
    paths = list(paths)
    covered = {PurePosixPath(path).parent for path in paths if suffix(path) == ".safetensors"}
    return [path for path in paths if suffix(path) not in PICKLES or covered.isdisjoint(PurePosixPath(path).parents)]


def suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower()


def _any_pattern(patterns: Iterable[str], path: str) -> bool:
    # "original/" means everything below, as for huggingface_hub.
    return any(fnmatchcase(path, f"{pattern}*" if pattern.endswith("/") else pattern) for pattern in patterns)


def _no_safe_weights(source: Source, paths: list[str]) -> SourceError:
    pickles = [path for path in paths if suffix(path) in PICKLES]
    if pickles:
        return SourceError(
            "UnsupportedFormat",
            f"{source.uri} holds weights only in formats that can run code when they are loaded: "
            f"{', '.join(pickles[:3])}{', …' if len(pickles) > 3 else ''}.",
            "Convert them to safetensors, or allow them with cachePolicy.source.formats: Any.",
        )
    found = sorted({suffix(path) or PurePosixPath(path).name for path in paths})
    return SourceError(
        "UnsupportedFormat",
        f"{source.uri} holds no safetensors or GGUF weights; it holds {', '.join(found[:8])}.",
        "Check the location, or allow other formats with cachePolicy.source.formats: Any.",
    )
