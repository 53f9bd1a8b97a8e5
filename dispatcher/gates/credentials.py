"""How a source of readings is reached."""

import ssl
from dataclasses import dataclass
from pathlib import Path


class GateSourceError(Exception):
    """A source gave nothing that can be believed; the text is the cause."""


@dataclass(frozen=True, slots=True)
class SourceCredentials:
    """How a source is reached. `bearer_token_file` is read anew at each request, since such tokens are renewed."""

    ca_file: str = ""
    bearer_token_file: str = ""

    def tls(self) -> ssl.SSLContext | bool:
        """For aiohttp; OSError when the file cannot be read or is no certificate."""
        return ssl.create_default_context(cafile=self.ca_file) if self.ca_file else True

    def headers(self) -> dict[str, str]:
        """Raises SourceError when there is no token in the file; the text does not quote it."""
        if not self.bearer_token_file:
            return {}
        try:
            token = Path(self.bearer_token_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise GateSourceError(f"no token in {self.bearer_token_file}: {type(error).__name__}") from error
        return {"Authorization": f"Bearer {token}"}
