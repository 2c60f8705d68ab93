"""Mounts without mount namespaces: paths below a mountPath are rewritten to the real directory.

They are rewritten in command, args and the literal values of env, wherever a path can begin: at the start, and
after white space, quotes, "=", ":", ",", brackets, "<", ">", "|", ";", "&" or "file://"; and only where the
mountPath ends or goes on with "/". Of nested mounts the longest wins. So `--root=/data/x` is rewritten for a mount
at /data; `/database`, `/srv/data` and `https://host/data` are not. readOnly cannot be enforced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

_BEGINNING = r"(?:(?<![\w./~$\\-])|(?<=file://))"
_END = r"(?=$|[/\s'\":,;&|<>()\[\]{}=])"
_REFERENCE = re.compile(r"\$\$|\$\((?P<name>[^)\s]+)\)")


def rewriter(mounts: Mapping[str, str]) -> Callable[[str], str]:
    """A function that rewrites one text. `mounts`: mountPath to real path."""
    paths = {path.rstrip("/"): real for path, real in mounts.items()}
    if not paths:
        return lambda text: text
    longest_first = sorted(paths, key=len, reverse=True)
    pattern = re.compile(_BEGINNING + "(" + "|".join(map(re.escape, longest_first)) + ")" + _END)
    return lambda text: pattern.sub(lambda found: paths[found[1]], text)


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Kubernetes' $(NAME); an unknown name stays as it is, $$ is one $."""

    def replacement(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        return variables.get(found["name"], found[0])

    return _REFERENCE.sub(replacement, text)
