"""SASL GSSAPI with a stand-in of the library: the messages of RFC 4752, the credentials, and the errors."""

from __future__ import annotations

import sys
from enum import IntFlag
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from scripted_broker import ScriptedCluster, ScriptedPartition

import kbatch
from kbatch.live import AuthenticationError
from kbatch.protocol import ApiKey, SaslAuthenticateResponse, SaslHandshakeResponse


class GSSError(Exception):
    """As that of the library."""


class Flag(IntFlag):
    mutual_authentication = 1
    integrity = 2


class Library(ModuleType):
    """Makes the context in two steps, and signs messages by a prefix."""

    def __init__(self) -> None:
        super().__init__("gssapi")
        self.exceptions = SimpleNamespace(GSSError=GSSError)
        self.NameType = SimpleNamespace(hostbased_service="service", kerberos_principal="principal")
        self.MechType = SimpleNamespace(kerberos="kerberos")
        self.RequirementFlag = Flag
        self.made: list[dict[str, Any]] = []
        self.credentials: list[dict[str, Any]] = []
        self.failure = ""
        self.SecurityContext = self._context

    def Name(self, text: str, kind: str) -> tuple[str, str]:
        return text, kind

    def Credentials(self, **given: Any) -> str:
        self.credentials.append(given)
        return "credentials"

    def _context(self, **given: Any) -> Context:
        self.made.append(given)
        return Context(self.failure)


class Context:
    def __init__(self, failure: str) -> None:
        self.complete = False
        self._failure = failure

    def step(self, token: bytes | None) -> bytes | None:
        if self._failure:
            raise GSSError(self._failure)
        if token is None:
            return b"ap-req"
        if token != b"ap-rep":
            raise GSSError("the reply is wrong")
        self.complete = True
        return None

    def unwrap(self, message: bytes) -> SimpleNamespace:
        if not message.startswith(b"signed:"):
            raise GSSError("a token was invalid")
        return SimpleNamespace(message=message.removeprefix(b"signed:"))

    def wrap(self, message: bytes, encrypts: bool) -> SimpleNamespace:
        assert not encrypts
        return SimpleNamespace(message=b"signed:" + message)


ANSWERS: dict[bytes, bytes | None] = {
    b"ap-req": b"ap-rep",
    b"": b"signed:\x07\x00\x10\x00",
    b"signed:\x01\x00\x00\x00": b"",
}


class KerberosCluster(ScriptedCluster):
    """Brokers that answer as Kafka's do."""

    def __init__(self, answers: dict[bytes, bytes | None]) -> None:
        partition = ScriptedPartition()
        partition.write([b"a"] * 3)
        super().__init__(orders=[partition])
        self.answers = {**ANSWERS, **answers}

    def _sasl_handshake(self, broker: int, message: Any, version: int) -> Any:
        return SaslHandshakeResponse(error_code=0 if message.mechanism == "GSSAPI" else 33, mechanisms=["GSSAPI"])

    def _sasl_authenticate(self, broker: int, message: Any, version: int) -> Any:
        answer = self.answers.get(bytes(message.auth_bytes))
        return SaslAuthenticateResponse(error_code=58 if answer is None else 0, auth_bytes=answer or b"")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setitem(sys.modules, "gssapi", made)
    return made


def read(cluster: ScriptedCluster, **settings: Any) -> int:
    consumer = kbatch.consume(
        "orders", bootstrap_servers="broker-1", security_protocol="SASL_PLAINTEXT", sasl_mechanism="GSSAPI",
        transport=cluster.connect, **settings,
    )  # fmt: skip
    return sum(map(len, consumer))


def test_the_context_is_made_and_no_security_layer_is_chosen(library: Library) -> None:
    cluster = KerberosCluster({})
    assert read(cluster) == 3
    sent = [bytes(each.auth_bytes) for each in cluster.sent(ApiKey.SASL_AUTHENTICATE)]
    assert sent == [b"ap-req", b"", b"signed:\x01\x00\x00\x00"] * len(cluster.open)
    for made in library.made:
        assert made["name"] == ("kafka@broker-1", "service")
        assert made["flags"] == Flag.mutual_authentication | Flag.integrity
        assert (made["creds"], made["mech"], made["usage"]) == (None, "kerberos", "initiate")


def test_a_keytab_and_a_principal_are_the_credentials(library: Library, tmp_path: Path) -> None:
    keytab = tmp_path / "me.keytab"
    keytab.write_bytes(b"")
    given = {"sasl_kerberos_principal": "me@TEST", "sasl_kerberos_service_name": "stream"}
    assert read(KerberosCluster({}), sasl_kerberos_keytab=keytab, **given) == 3
    first = library.credentials[0]
    assert (first["name"], first["store"]["client_keytab"]) == (("me@TEST", "principal"), str(keytab))
    assert first["store"]["ccache"].startswith("MEMORY:")
    assert library.made[0]["name"] == ("stream@broker-1", "service")
    with pytest.raises(AuthenticationError, match=r"broker broker-1:9092: the file of sasl.kerberos.keytab can't"):
        read(KerberosCluster({}), sasl_kerberos_keytab=tmp_path / "none")


@pytest.mark.parametrize(
    ("answers", "failure", "message"),
    [
        (
            {},
            "No Kerberos credentials available",
            "as a client of kafka@broker-1: No Kerberos credentials avail",
        ),
        ({b"ap-req": b"forged"}, "", "the reply is wrong; check the ticket"),
        ({b"": b"forged"}, "", "a token was invalid; check the ticket"),
        (
            {b"": b"signed:\x06\x00\x10\x00"},
            "",
            "it requires a security layer of Kerberos, which is not",
        ),
        ({b"": b"signed:\x01"}, "", "it requires a security layer of Kerberos"),
        ({b"ap-req": None}, "", "authentication by GSSAPI failed: .*; check the Kerberos ticket"),
    ],
)
def test_errors_name_the_broker_and_what_to_check(
    library: Library, answers: dict[bytes, bytes | None], failure: str, message: str
) -> None:
    cluster = KerberosCluster(answers)
    library.failure = failure
    with pytest.raises(AuthenticationError, match=f"^broker broker-1:9092: .*{message}"):
        read(cluster)


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(kbatch.MissingDependencyError, match="install the extra 'gssapi': "):
        read(KerberosCluster({}))
