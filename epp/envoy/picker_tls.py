"""TLS from Envoy to the picker.

https://www.envoyproxy.io/docs/envoy/latest/api-v3/extensions/transport_sockets/tls/v3/common.proto
"""

from epp.envoy.json_values import Address, Json, typed_config
from epp.envoy.settings import EnvoySettings


def picker_tls(settings: EnvoySettings) -> Json:
    """The field `transport_socket` of the picker's cluster."""
    tls = {
        "alpn_protocols": ["h2"],
        "tls_params": {"tls_maximum_protocol_version": "TLSv1_3"},  # Envoy's default for clients is TLS 1.2
        **_client_certificate(settings),
        **_trust(settings),
    }
    context = typed_config("transport_sockets.tls.v3.UpstreamTlsContext", common_tls_context=tls)
    return {"name": "envoy.transport_sockets.tls", "typed_config": context}


def _client_certificate(settings: EnvoySettings) -> Json:
    if settings.client_cert is None:
        return {}
    files = {"certificate_chain": settings.client_cert, "private_key": settings.client_key}
    return {"tls_certificates": [{name: {"filename": path} for name, path in files.items()}]}


def _trust(settings: EnvoySettings) -> Json:
    """Without a CA there is no validation context: the picker's default certificate is self-signed."""
    if settings.ca_file is None:
        return {}
    names = [_subject_alternative_name(picker) for picker in settings.pickers]
    trusted = {"trusted_ca": {"filename": settings.ca_file}, "match_typed_subject_alt_names": names}
    return {"validation_context": trusted}


def _subject_alternative_name(picker: Address) -> Json:
    """One of these must be in the certificate: a CA signs others' certificates too."""
    return {"san_type": "IP_ADDRESS" if picker.is_ip else "DNS", "matcher": {"exact": picker.host}}
