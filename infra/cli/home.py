"""Where `warmpath up` keeps its state: one directory, by default `./.warmpath`."""

from __future__ import annotations

import json
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.local.server import free_ports


@dataclass(frozen=True, slots=True)
class Home:
    root: Path

    @classmethod
    def open(cls) -> Home:
        """The home that WARMPATH_HOME names, made private to its owner on first use."""
        home = cls(Path(os.environ.get("WARMPATH_HOME", ".warmpath")).resolve())
        home.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        return home

    @property
    def cluster(self) -> Path:
        return self.root / "cluster"

    @property
    def routing_file(self) -> Path:
        return self.root / "routing.json"

    def log(self, service: str) -> Path:
        return self.root / "logs" / f"{service}.log"

    def read(self, name: str) -> dict[str, Any]:
        """The JSON document `name`, {} when there is none."""
        path = self.root / f"{name}.json"
        loaded: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return loaded

    def write(self, name: str, document: dict[str, Any]) -> None:
        """Replace the JSON document `name` by one rename, readable by its owner only."""
        path = self.root / f"{name}.json"
        draft = path.with_suffix(f".{os.getpid()}.{secrets.token_hex(4)}")
        draft.touch(mode=0o600)
        draft.write_text(json.dumps(document, indent=1))
        draft.replace(path)

    def port(self, service: str, preferred: int) -> int:
        """The port that `service` has in this home: `preferred` if it is free, else any; then always the same."""
        ports = self.read("ports")
        if service not in ports:
            ports[service] = preferred if is_free(preferred) else free_ports(1)[0]
            self.write("ports", ports)
        return int(ports[service])


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def shipped(name: str) -> Path:
    """A file that comes with Warmpath: beside the packages in a checkout, inside them in a wheel."""
    infra = Path(__file__).parents[1]
    inside = infra / name
    return inside if inside.exists() else infra.parent / name
