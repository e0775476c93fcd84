"""How many examples are drawn: few and always the same ones in `make test`, many new ones in `make properties`."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from outcomes import write_counts

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile("few", derandomize=True, max_examples=12, deadline=None, database=None,
                          suppress_health_check=SLOW, phases=[Phase.explicit, Phase.generate])  # fmt: skip
settings.register_profile("many", max_examples=1000, deadline=None, database=None, suppress_health_check=SLOW,
                          print_blob=True)  # fmt: skip
settings.load_profile(os.environ.get("TOPOFF_EXAMPLES", "few"))


@pytest.fixture(autouse=True, scope="session")
def _counted() -> Iterator[None]:
    yield
    write_counts()
