"""Says for people what the sections `outlierDetection` and `slowStart` do (pure)."""

from collections.abc import Iterator

from epp.outliers.settings import OutlierSettings
from epp.outliers.slow_start import SlowStartSettings


def outlier_steps(outliers: OutlierSettings | None, slow_start: SlowStartSettings | None) -> Iterator[str]:
    if outliers is not None:
        first, longest = outliers.base_ejection_time, outliers.max_ejection_time
        yield (
            f"outlier detection: an endpoint that fails is ejected for {first:g} to {longest:g} s, "
            f"at most {outliers.max_ejection_percent:g} % of the pool at once"
        )
    if slow_start is not None:
        yield f"slow start: a new endpoint gets its full share after {slow_start.window:g} s"
