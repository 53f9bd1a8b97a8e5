"""What an installed package imports to add plugins to the picker: docs/extending.md walks through one of each.

It declares entry points in the group `adsum.plugins`. The name of each is the plugin type in the configuration, the
object it refers to is a `PluginDeclaration`.
"""

from epp.config.catalogue import Role
from epp.config.declaration import PluginContext, PluginDeclaration
from epp.config.document import Duration, Section
from epp.config.parameters import NoParameters, PickerParameters
from epp.endpoints.endpoint import Endpoint, EndpointPool, Floats, Indices, Mask
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.scheduling.plugin import DataProducer, Filter, Picker, Scorer, Scores

__all__ = [
    "DataProducer",
    "Duration",
    "Endpoint",
    "EndpointPool",
    "Filter",
    "Floats",
    "Indices",
    "InferenceRequest",
    "Mask",
    "NoParameters",
    "Picker",
    "PickerParameters",
    "PluginContext",
    "PluginDeclaration",
    "Rejection",
    "Role",
    "Scorer",
    "Scores",
    "Section",
]
