"""Results without what differs between two runs of one experiment: times, memory, who ran it."""

import copy
import json
from collections.abc import Mapping
from typing import Any

_COST = ("seconds", "first_batch_seconds", "ms_an_image", "peak_device_bytes", "peak_host_bytes")
_PROVENANCE = ("started", "finished", "resumed", "hardware")


def without_timings(result: Mapping[str, Any]) -> str:
    """The rest of a result as it is written, in its order."""
    rest = copy.deepcopy(dict(result))
    for name in _COST:
        del rest["cost"][name]
    for name in _PROVENANCE:
        del rest["provenance"][name]
    return json.dumps(rest, indent=2)
