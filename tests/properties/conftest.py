"""How many examples are drawn: few and always the same ones, or as many new ones as $TOPOFF_EXAMPLES asks for.

`make properties` (scripts/inputs.py) does the latter.
"""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from outcomes import write_counts

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile("few", derandomize=True, max_examples=12, deadline=None, database=None,
                          suppress_health_check=SLOW, phases=[Phase.explicit, Phase.generate])  # fmt: skip
asked = os.environ.get("TOPOFF_EXAMPLES", "few")
if asked != "few":
    settings.register_profile(asked, max_examples=int(asked), deadline=None, database=None, print_blob=True,
                              suppress_health_check=SLOW)  # fmt: skip
settings.load_profile(asked)


@pytest.fixture(autouse=True, scope="session")
def _counted() -> Iterator[None]:
    yield
    write_counts()
