"""The sockets: reuse, silence, odd answers, proxies and certificates."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from tasks.prefetch import http
from tasks.prefetch.errors import Hiccup
from tasks.prefetch.http import Connections


class Peer:
    """A server that answers each connection with the given bytes, one answer per request."""

    def __init__(self, *answers: bytes, close: bool = False, tls: ssl.SSLContext | None = None) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://localhost:{self.port}/f"
        self.answers, self.close, self.tls = list(answers), close, tls
        self.heads: list[str] = []
        self.accepted = 0
        self.over = threading.Event()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        while self.answers:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            self.accepted += 1
            # The client hangs up on purpose in some of these tests.
            with suppress(OSError), sock, self.tls.wrap_socket(sock, server_side=True) if self.tls else sock as talking:
                self.talk(talking)

    def talk(self, sock: socket.socket) -> None:
        while self.answers:
            head = sock.recv(65536)
            if not head:
                return
            self.heads.append(head.decode())
            sock.sendall(self.answers.pop(0))
            if self.close:
                return
        self.over.wait(5)


def answer(body: bytes, head: str = "") -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n{head}\r\n".encode() + body


@pytest.fixture
def connections():
    made = Connections()
    yield made
    made.close()


@pytest.fixture
def serve():
    peers = []

    def made(*answers, **options):
        peers.append(Peer(*answers, **options))
        return peers[-1]

    yield made
    for peer in peers:
        peer.over.set()
        peer.listener.close()


def body_of(response):
    view = memoryview(bytearray(response.length))
    response.read_into(view)
    return bytes(view)


def test_a_connection_serves_one_request_after_another(connections, serve):
    peer = serve(answer(b"one"), answer(b"two"))
    assert [body_of(connections.get(peer.url, {})) for _ in range(2)] == [b"one", b"two"]
    assert peer.accepted == 1


def test_a_connection_closed_while_idle_is_replaced_without_a_failure(connections, serve):
    peer = serve(answer(b"one"), answer(b"two"), close=True)
    assert [body_of(connections.get(peer.url, {})) for _ in range(2)] == [b"one", b"two"]
    assert peer.accepted == 2


@pytest.mark.parametrize("closed", [True, False])
def test_a_body_left_unread_is_never_taken_for_the_next_answer(connections, serve, closed):
    peer = serve(answer(b"x" * 100_000), answer(b"two"))
    unread = connections.get(peer.url, {})
    if closed:
        unread.close()
    assert body_of(connections.get(peer.url, {})) == b"two"
    assert peer.accepted == 2


def test_a_small_chunked_answer_is_understood(connections, serve):
    peer = serve(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n")
    assert body_of(connections.get(peer.url, {})) == b"abcde"


def test_an_interim_answer_is_skipped(connections, serve):
    peer = serve(b"HTTP/1.1 100 Continue\r\n\r\n" + answer(b"yes"))
    assert body_of(connections.get(peer.url, {})) == b"yes"


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", "Stalled"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", "Stalled"),
        (b"nonsense\r\n\r\n", "Network"),
    ],
)
def test_silence_and_nonsense_are_hiccups(connections, serve, sent, reason):
    """Pain 37: a connection that brings nothing is given up."""
    peer = serve(sent, b"")
    with pytest.raises(Hiccup) as caught:
        body_of(connections.get(peer.url, {}))
    assert caught.value.reason == reason


def test_an_answer_cut_off_is_a_hiccup(connections, serve):
    """Pain 1."""
    peer = serve(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", close=True)
    with pytest.raises(Hiccup, match="middle of an answer"):
        body_of(connections.get(peer.url, {}))


def test_a_host_that_is_not_there_is_a_hiccup(connections):
    with pytest.raises(Hiccup, match="no connection") as caught:
        connections.get("http://127.0.0.1:1/", {})
    assert caught.value.reason == "Network"


def test_a_proxy_is_asked_where_the_environment_names_one(connections, serve, monkeypatch):
    proxy = serve(answer(b"by proxy"))
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
    http._proxy.cache_clear()
    try:
        assert body_of(connections.get("http://far.test/f?x=1", {})) == b"by proxy"
    finally:
        http._proxy.cache_clear()
    assert proxy.heads[0].startswith("GET http://far.test/f?x=1 HTTP/1.1\r\nHost: far.test\r\n")


@pytest.fixture
def certificate(tmp_path):
    """A certificate for localhost, signed by itself: (server context, path)."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "tls.pem"
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context, path


@pytest.fixture(autouse=True)
def fresh_tls():
    http._tls.cache_clear()
    yield
    http._tls.cache_clear()


def test_tls_with_an_authority_of_ones_own(connections, serve, certificate, monkeypatch):
    context, path = certificate
    monkeypatch.setenv("AWS_CA_BUNDLE", str(path))
    body = bytes(range(256)) * 1000
    peer = serve(answer(body), answer(b"two"), tls=context)
    assert [body_of(connections.get(peer.url, {})) for _ in range(2)] == [body, b"two"]


def test_an_unknown_authority_is_refused(connections, serve, certificate, monkeypatch):
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    peer = serve(answer(b""), tls=certificate[0])
    with pytest.raises(Hiccup, match="certificate is refused"):
        connections.get(peer.url, {})


def test_silence_over_tls_is_a_hiccup_too(connections, serve, certificate, monkeypatch):
    context, path = certificate
    monkeypatch.setenv("AWS_CA_BUNDLE", str(path))
    peer = serve(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", b"", tls=context)
    with pytest.raises(Hiccup) as caught:
        body_of(connections.get(peer.url, {}))
    assert caught.value.reason == "Stalled"
