"""The declarations of the compiled fairness policies. Pure."""

from typing import Final

from epp.flow_control.fairness_policy import GlobalStrict
from epp.flow_control.round_robin import RoundRobin
from epp.plugins.declaration import PluginDeclaration, Role

GLOBAL_STRICT_FAIRNESS_POLICY: Final = PluginDeclaration(
    type="global-strict-fairness-policy", role=Role.FAIRNESS, build=lambda given, context: GlobalStrict()
)
ROUND_ROBIN_FAIRNESS_POLICY: Final = PluginDeclaration(
    type="round-robin-fairness-policy", role=Role.FAIRNESS, build=lambda given, context: RoundRobin()
)
