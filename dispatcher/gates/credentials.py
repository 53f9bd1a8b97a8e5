"""TLS and bearer tokens of the sources that gates read."""

import ssl
from dataclasses import dataclass
from pathlib import Path


class GateSourceError(Exception):
    """A source gave no valid number; the text says why. The gate counts it as a budget of 0."""


@dataclass(frozen=True, slots=True)
class SourceCredentials:
    """The certificate authorities and the token of a source.

    `bearer_token_file` is read for each request: the kubelet renews the tokens of service accounts in place.
    """

    ca_file: str = ""
    bearer_token_file: str = ""

    def tls(self) -> ssl.SSLContext | bool:
        """For aiohttp's `ssl`; raises OSError if the file cannot be read or holds no certificate."""
        return ssl.create_default_context(cafile=self.ca_file) if self.ca_file else True

    def headers(self) -> dict[str, str]:
        """Raises GateSourceError if the file cannot be read; the text quotes nothing of it."""
        if not self.bearer_token_file:
            return {}
        try:
            token = Path(self.bearer_token_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise GateSourceError(f"no token in {self.bearer_token_file}: {type(error).__name__}") from error
        return {"Authorization": f"Bearer {token}"}
