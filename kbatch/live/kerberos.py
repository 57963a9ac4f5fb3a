"""SASL GSSAPI: Kerberos authentication (RFC 4752), with the libraries of the system."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

from kbatch.extras import require
from kbatch.live.broker_errors import AuthenticationError
from kbatch.live.settings import ClientSettings

__all__ = ["gssapi_exchange"]

# The bit for "no security layer", and the size of the messages that offer and choose a layer (RFC 4752).
_NO_LAYER = 1
_OFFER_BYTES = 4


def gssapi_exchange(settings: ClientSettings, host: str) -> Generator[bytes, bytes, None]:
    """Yield the client's messages: those that establish the context, then the choice of no security layer.

    Raises
    ------
    MissingDependencyError
    AuthenticationError
        If there are no credentials, or the broker cannot prove its identity.
    """
    gssapi = require("gssapi", "gssapi", "sasl.mechanism=GSSAPI")
    service = f"{settings.sasl_kerberos_service_name}@{host}"
    try:
        context = gssapi.SecurityContext(
            name=gssapi.Name(service, gssapi.NameType.hostbased_service),
            creds=_credentials_of(gssapi, settings),
            mech=gssapi.MechType.kerberos,
            flags=gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity,
            usage="initiate",
        )
        answer = None
        while not context.complete:
            answer = yield context.step(answer) or b""
        offer = context.unwrap(answer or b"").message
        if len(offer) != _OFFER_BYTES or not offer[0] & _NO_LAYER:
            raise AuthenticationError(
                "it requires a security layer of Kerberos, which is not supported; use security.protocol=SASL_SSL"
            )
        # The ticket determines the identity. A client without a layer receives messages of size 0.
        reply: bytes = context.wrap(bytes([_NO_LAYER, 0, 0, 0]), False).message
    except gssapi.exceptions.GSSError as error:
        raise AuthenticationError(
            f"no authentication by Kerberos as a client of {service}: {' '.join(str(error).split())}; check the ticket "
            "(klist), or sasl.kerberos.keytab and sasl.kerberos.principal, and sasl.kerberos.service.name"
        ) from None
    yield reply


def _credentials_of(gssapi: Any, settings: ClientSettings) -> Any:
    """Return the credentials of the keytab and principal; None means the ticket in the user's cache."""
    keytab, principal = settings.sasl_kerberos_keytab, settings.sasl_kerberos_principal
    if keytab is None and principal is None:
        return None
    if keytab is not None and not os.access(keytab, os.R_OK):
        raise AuthenticationError("the file of sasl.kerberos.keytab can't be read")
    name = None if principal is None else gssapi.Name(principal, gssapi.NameType.kerberos_principal)
    # The tickets are in memory, so that they do not replace the user's. A cache holds the tickets of one principal.
    cache = f"MEMORY:kbatch-{hash((keytab, principal)) & 0xFFFFFFFF:x}"
    store = None if keytab is None else {"client_keytab": keytab, "ccache": cache}
    return gssapi.Credentials(usage="initiate", name=name, store=store)
