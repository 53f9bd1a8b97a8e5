"""A metadata client for workers that may get no processor for some seconds: they are late, not silent."""

from discovery import MetadataClient
from discovery.metadata.silence import SilenceTimings


def patient_client(wait: float = 1.0) -> MetadataClient:
    """`wait`: seconds for which workers hold its GETs."""
    return MetadataClient(timeout=60.0, silence=SilenceTimings(wait=wait, margin=60.0))
