"""Two plugins that tests of gateways ask for: a filter that a request header steers, and a header that says who served.

Headers and formats: llm-d-router, plugins/scheduling/test and plugins/requestcontrol/test, as the conformance suite of the
Gateway API inference extension has them.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from epp.endpoints.endpoint import EndpointPool, Mask
from epp.plugins.declaration import PluginContext, PluginDeclaration, Role, without_parameters
from epp.plugins.section import NoParameters
from epp.request.inference_request import InferenceRequest
from epp.request.subset import Subset
from epp.scheduling.pick import Pick

SELECTION_HEADER: Final = "test-epp-endpoint-selection"
SERVED_HEADER: Final = "x-conformance-test-served-endpoint"
_UNKNOWN: Final = "fail: missing destination endpoint served metadata"
_MAX_DESTINATION: Final = 300


class HeaderSelectionFilter:
    """The header has `ip` or `ip:port`, separated by commas; without it, no endpoint stays. One endpoint for each address."""

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        named = Subset.of([request.headers.get(SELECTION_HEADER, "")])
        kept: Mask = np.zeros(len(pool), dtype=np.bool_)
        addresses: set[str] = set()
        for row, endpoint in enumerate(pool.endpoints):
            if endpoint.address not in addresses and named.allows(endpoint.address, endpoint.port):
                addresses.add(endpoint.address)
                kept[row] = True
        return kept


def tell_served(pick: Pick, served: str | None) -> Mapping[str, str]:
    """The response header with the destination that served, as the data plane wrote it."""
    is_told = (
        served is not None and len(served) <= _MAX_DESTINATION and served.isascii() and served.isprintable()
    )
    return {SERVED_HEADER: served if served is not None and is_told else _UNKNOWN}


def _tell_served(given: NoParameters, context: PluginContext) -> object:
    context.set_response_headers(tell_served)
    return tell_served


HEADER_BASED_TESTING_FILTER: Final = without_parameters(
    "header-based-testing-filter", Role.FILTER, HeaderSelectionFilter
)
DESTINATION_ENDPOINT_SERVED_VERIFIER: Final = PluginDeclaration(
    type="destination-endpoint-served-verifier", role=Role.RESPONSE_HEADERS, build=_tell_served
)
