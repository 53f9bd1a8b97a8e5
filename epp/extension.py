"""The names that an installed package imports to add plugins to the picker; docs/extending.md has an example of each kind.

The package declares entry points in the group `adsum.plugins`: the name of one is the plugin type in the
configuration, its object is a `PluginDeclaration`.
"""

from epp.endpoints.endpoint import Endpoint, EndpointPool, Floats, Indices, Mask
from epp.flow_control.fairness import FairnessPolicy, Flow, FlowSelector
from epp.flow_control.flow_queue import QueuedRequest
from epp.flow_control.orderings import OrderingPolicy
from epp.flow_control.usage_limits import UsageLimitPolicy
from epp.plugins.declaration import ParameterError, PluginContext, PluginDeclaration, Role
from epp.plugins.section import Duration, NoParameters, PickerParameters, Section
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.scheduling.pick import Pick
from epp.scheduling.plugin import DataProducer, Filter, Picker, ProfileHandler, Scorer, Scores
from epp.scheduling.prefix.scorer import prefix_match
from epp.scheduling.profile_result import ProfileResult, Results
from epp.scheduling.published_only import check_published_only

__all__ = [
    "DataProducer",
    "Duration",
    "Endpoint",
    "EndpointPool",
    "FairnessPolicy",
    "Filter",
    "Floats",
    "Flow",
    "FlowSelector",
    "Indices",
    "InferenceRequest",
    "Mask",
    "NoParameters",
    "OrderingPolicy",
    "ParameterError",
    "Pick",
    "Picker",
    "PickerParameters",
    "PluginContext",
    "PluginDeclaration",
    "ProfileHandler",
    "ProfileResult",
    "QueuedRequest",
    "Rejection",
    "Results",
    "Role",
    "Scorer",
    "Scores",
    "Section",
    "UsageLimitPolicy",
    "check_published_only",
    "prefix_match",
]
