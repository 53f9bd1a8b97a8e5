"""A small EndpointSlice controller: from Services and pods to slices (kubernetes/endpointslice, reconciler.go)."""

import random
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from typing import TypeAlias

from tests.kubernetes.fake.api import FakeApi
from tests.kubernetes.fake.rv_log import Object, Selector

Step: TypeAlias = Callable[[], object]
EndpointKey: TypeAlias = tuple[str, str]
"""Address and pod name: not the uid, so a pod reborn at its address changes in place (endpointset.go)."""

_SERVICE_NAME = "kubernetes.io/service-name"
_MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
_MANAGER = "endpointslice-controller.k8s.io"
_NO_COPY = (_SERVICE_NAME, _MANAGED_BY, "service.kubernetes.io/headless")


@dataclass(slots=True)
class _Plan:
    """What one sync writes; the order between the three lists is fixed, within `updates` it is random."""

    creates: list[Object] = field(default_factory=list)
    updates: dict[str, Object] = field(default_factory=dict)
    deletes: dict[str, Object] = field(default_factory=dict)


class SliceController:
    """Call `sync` after pods or Services changed, or go through `steps` one write at a time."""

    def __init__(self, api: FakeApi, *, max_endpoints: int = 100, rng: random.Random | None = None) -> None:
        self._api = api
        self._max = max_endpoints
        self._rng = rng or random.Random(0)

    def sync(self, service: str, namespace: str = "default") -> None:
        for step in self.steps(service, namespace):
            step()

    def steps(self, service: str, namespace: str = "default") -> list[Step]:
        """The writes of one sync, in order: each is an event of its own. Without the Service, the collector's deletes."""
        existing = self._slices(service, namespace)
        found = self._api.log.get("services", namespace, service)
        if found is None:
            return [self._deleting(obj) for obj in existing]
        if not found["spec"]["selector"]:
            return []  # slices of a Service that lost its selector freeze (k8s#118376)
        plan = _Plan()
        for family in ("IPv4", "IPv6"):
            of_family = [s for s in existing if s["addressType"] == family]
            if family in found["spec"]["ipFamilies"]:
                self._reconcile(found, family, of_family, plan)
            else:
                plan.deletes |= {_name(s): s for s in of_family}
        return list(self._writes(plan))

    def _slices(self, service: str, namespace: str) -> list[Object]:
        wanted = Selector.parse(f"{_SERVICE_NAME}={service},{_MANAGED_BY}={_MANAGER}")
        return self._api.log.objects("endpointslices", namespace, wanted)

    def _reconcile(self, service: Object, family: str, existing: list[Object], plan: _Plan) -> None:
        wanted: dict[str, tuple[list[Object], dict[EndpointKey, Object]]] = {}
        for pod in self._pods(service):
            if address := _address(pod, family):
                ports = _ports(service, pod)
                _, endpoints = wanted.setdefault(repr(ports), (ports, {}))
                endpoints[(address, _name(pod))] = _endpoint(service, pod, address)
        part = _Plan()
        for ports, endpoints in wanted.values():
            same = [s for s in existing if (s["ports"] or []) == ports and s["endpoints"]]
            self._place(service, family, ports, endpoints, same, part)
        unused = [s for s in existing if not s["endpoints"] or repr(s["ports"] or []) not in wanted]
        only_placeholder = len(unused) == 1 and not unused[0]["endpoints"]
        if wanted or not only_placeholder:
            part.deletes |= {_name(s): s for s in unused}
        if not wanted and not only_placeholder:
            part.creates.append(self._slice(service, family, None, []))
        self._relabel(service, existing, part)
        self._reuse(part)
        plan.creates += part.creates
        plan.updates |= part.updates
        plan.deletes |= part.deletes

    def _place(
        self,
        service: Object,
        family: str,
        ports: list[Object],
        endpoints: dict[EndpointKey, Object],
        existing: list[Object],
        part: _Plan,
    ) -> None:
        """Endpoints stay in their slices; new ones go to slices that change anyway, then to others with room, then to new ones."""
        left = dict(endpoints)
        room: list[tuple[bool, Object]] = []
        for old in existing:
            kept = [left.pop(key) for e in old["endpoints"] if (key := _key(e)) in left]
            changed = kept != old["endpoints"]
            if not kept:
                part.deletes[_name(old)] = old
                continue
            new = old | {"endpoints": kept}
            if changed:
                part.updates[_name(old)] = new
            room.append((not changed, new))
        self._rng.shuffle(room)
        todo = list(left.values())
        for _, new in sorted(room, key=lambda pair: pair[0]):
            free = self._max - len(new["endpoints"])
            if todo and free > 0:
                taken, todo = todo[:free], todo[free:]
                part.updates[_name(new)] = new | {"endpoints": new["endpoints"] + taken}
        while todo:
            part.creates.append(self._slice(service, family, ports, todo[: self._max]))
            todo = todo[self._max :]

    def _relabel(self, service: Object, existing: list[Object], part: _Plan) -> None:
        labels = _labels(service)
        for old in existing:
            now = part.updates.get(_name(old), old)
            if _name(old) not in part.deletes and now["metadata"]["labels"] != labels:
                part.updates[_name(old)] = now | {"metadata": now["metadata"] | {"labels": labels}}

    def _reuse(self, part: _Plan) -> None:
        """A slice to be made takes the name of one to be deleted: it changes wholly, ports included."""
        while part.creates and part.deletes:
            name, old = part.deletes.popitem()
            new = part.creates.pop()
            part.updates[name] = new | {"metadata": old["metadata"] | {"labels": new["metadata"]["labels"]}}

    def _writes(self, plan: _Plan) -> Iterator[Step]:
        updates = list(plan.updates.values())
        self._rng.shuffle(updates)
        for obj in (*plan.creates, *updates):
            yield partial(self._api.put, "endpointslices", obj)
        for obj in plan.deletes.values():
            yield self._deleting(obj)

    def _deleting(self, obj: Object) -> Step:
        return partial(self._api.log.delete, "endpointslices", obj["metadata"]["namespace"], _name(obj))

    def _pods(self, service: Object) -> list[Object]:
        selector = Selector.parse(",".join(f"{k}={v}" for k, v in service["spec"]["selector"].items()))
        pods = self._api.log.objects("pods", service["metadata"]["namespace"], selector)
        return [p for p in pods if p["status"]["phase"] not in ("Failed", "Succeeded")]

    def _slice(
        self, service: Object, family: str, ports: list[Object] | None, endpoints: list[Object]
    ) -> Object:
        suffix = "".join(self._rng.choices(string.ascii_lowercase + string.digits, k=5))
        meta = {
            "name": f"{_name(service)}-{suffix}",
            "generateName": f"{_name(service)}-",
            "namespace": service["metadata"]["namespace"],
            "labels": _labels(service),
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Service", "name": _name(service), "controller": True}
            ],
        }
        return {"metadata": meta, "addressType": family, "endpoints": endpoints or None, "ports": ports}


def _name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def _key(endpoint: Object) -> EndpointKey:
    return endpoint["addresses"][0], endpoint["targetRef"]["name"]


def _labels(service: Object) -> Mapping[str, str]:
    copied = {k: v for k, v in service["metadata"]["labels"].items() if k not in _NO_COPY}
    return copied | {_SERVICE_NAME: _name(service), _MANAGED_BY: _MANAGER}


def _address(pod: Object, family: str) -> str | None:
    version = 4 if family == "IPv4" else 6
    ips = (entry["ip"] for entry in pod["status"]["podIPs"])
    return next((ip for ip in ips if ip_address(ip).version == version), None)


def _ports(service: Object, pod: Object) -> list[Object]:
    """A named targetPort is looked up in the pod; a port that it does not have is left out."""
    named = {p["name"]: p["containerPort"] for c in pod["spec"]["containers"] for p in c["ports"]}
    numbers = ((p["name"], named.get(p["targetPort"], p["targetPort"])) for p in service["spec"]["ports"])
    return [{"name": n, "port": p, "protocol": "TCP"} for n, p in numbers if isinstance(p, int)]


def _endpoint(service: Object, pod: Object, address: str) -> Object:
    """The conditions of podToEndpoint: `publishNotReadyAddresses` touches `ready` only."""
    serving = any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"]["conditions"])
    terminating = "deletionTimestamp" in pod["metadata"]
    ready = service["spec"]["publishNotReadyAddresses"] or (serving and not terminating)
    meta = pod["metadata"]
    return {
        "addresses": [address],
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        "targetRef": {
            "kind": "Pod",
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
        },
        "nodeName": pod["spec"]["nodeName"],
        "zone": f"zone-of-{pod['spec']['nodeName']}",
    }
