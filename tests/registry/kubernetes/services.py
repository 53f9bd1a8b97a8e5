"""A pod's labels, and Services as the API server shows them."""

from typing import Any

from discovery.source import ComponentKey

KEY = ComponentKey("dynamo", "decode")
LABELS = {"app": "llm", "nvidia.com/dynamo-namespace": "dynamo", "nvidia.com/dynamo-component": "decode"}
SELECTOR = {name: value for name, value in LABELS.items() if name != "app"}


def service(name: str = "dynamo-decode-service", port: int = 8080, **spec: Any) -> dict[str, Any]:
    """A Service as the API server shows it; `spec` replaces parts of its spec."""
    ports = [{"name": "http", "port": port, "protocol": "TCP", "targetPort": port}]
    whole = {"selector": SELECTOR, "ports": ports, "type": "ClusterIP", "clusterIP": "None"}
    return {"metadata": {"name": name, "namespace": "prod", "uid": "u"}, "spec": {**whole, **spec}}
