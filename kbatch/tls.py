"""TLS of clients."""

from __future__ import annotations

import os
import ssl

__all__ = ["client_context"]


def client_context(
    ca_location: str | None,
    certificate_location: str | None,
    key_location: str | None,
    key_password: str | None,
    *,
    ca_pem: str | None = None,
    prefix: str = "",
) -> ssl.SSLContext:
    """Return a context that verifies the certificate and the host name of the server.

    Parameters
    ----------
    ca_location : str or None
        A file or a directory of authorities; None is those of the system.
    certificate_location, key_location, key_password : str or None
        For mutual TLS.
    ca_pem : str, optional
        Authorities as text.
    prefix : str
        Of the names of settings in errors.

    Raises
    ------
    ValueError
        If a file of certificates cannot be used.
    """
    is_directory = ca_location is not None and os.path.isdir(ca_location)
    try:
        context = ssl.create_default_context(
            cafile=None if is_directory else ca_location, capath=ca_location if is_directory else None, cadata=ca_pem
        )
    except (OSError, ValueError) as error:
        name = "ssl.ca.location" if ca_location is not None else "ssl.ca.pem"
        raise ValueError(
            f"{prefix}{name} has no certificates of authorities in PEM that can be read: {error}"
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate_location is not None:
        try:
            # Without a password, OpenSSL would ask for one on the terminal.
            context.load_cert_chain(certificate_location, key_location, lambda: key_password or "")
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{prefix}ssl.certificate.location and {prefix}ssl.key.location must be a certificate and its key in "
                f"PEM, and {prefix}ssl.key.password the password of the key, if it has one: {error}"
            ) from None
    return context
