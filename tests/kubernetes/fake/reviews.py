"""TokenReview and SubjectAccessReview of the fake API server."""

import json
from typing import Any

from tests.kubernetes.fake.calls import Answer, Call, StatusError, json_line, once

_TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class Reviews:
    """`accounts`: the user of each token. `grants`: (user, verb, path) of RBAC's rules with nonResourceURLs.

    `forbidden`: who asks may not create reviews.
    """

    def __init__(self) -> None:
        self.accounts: dict[str, str] = {}
        self.grants: set[tuple[str, str, str]] = set()
        self.forbidden = False

    def answer(self, call: Call) -> Answer | None:
        """None if the call is no review."""
        if call.method != "POST" or call.path not in (_TOKENS, _ACCESS):
            return None
        resource, group = call.path.rpartition("/")[2], call.path.split("/")[2]
        if self.forbidden:
            said = (
                f'{resource}.{group} is forbidden: User "picker" cannot create resource "{resource}" in API group '
                f'"{group}" at the cluster scope'
            )
            raise StatusError(403, "Forbidden", said, about={"group": group, "kind": resource})
        review = json.loads(call.body)
        spec = review["spec"]
        review["metadata"] = {}
        review["status"] = self._user(spec["token"]) if call.path == _TOKENS else self._access(spec)
        return Answer(201, once(json_line(review)))

    def _user(self, token: str) -> dict[str, Any]:
        if (name := self.accounts.get(token)) is None:
            return {"user": {}, "error": "[invalid bearer token, token lookup failed]"}
        user = {"username": name, "uid": f"uid-of-{name}", "groups": ["system:authenticated"]}
        return {"authenticated": True, "user": user, "audiences": ["https://kubernetes.default.svc"]}

    def _access(self, spec: dict[str, Any]) -> dict[str, Any]:
        asked = spec["nonResourceAttributes"]
        if (spec["user"], asked["verb"], asked["path"]) not in self.grants:
            return {"allowed": False}
        return {"allowed": True, "reason": 'RBAC: allowed by ClusterRoleBinding "prometheus"'}
