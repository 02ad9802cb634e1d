"""The choices of hypothesis: everything, but more often what leads somewhere."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from sa_doclock import LockOptions
from tests.reliability.fuzz.asking import EVERY, GUARDS, VALID
from tests.reliability.fuzz.entities import ENTITIES
from tests.reliability.fuzz.states import AFTERWARDS, STATES


def some(names: Iterable[str], usual: Iterable[str]) -> st.SearchStrategy[str]:
    """Choose one of the usual names as often as one of all."""
    return st.one_of(st.sampled_from(sorted(usual)), st.sampled_from(sorted(names)))


locks = st.one_of(
    st.sampled_from([LockOptions.ForUpdate, LockOptions.SharedRead]),
    st.sampled_from(VALID),
    st.sampled_from(VALID),
    st.sampled_from(EVERY),
)
shapes = st.sampled_from(sorted(ENTITIES))
states = some(STATES, ["no transaction"])
later = st.sampled_from((*["no transaction"] * 6, *AFTERWARDS))
waits = st.sampled_from((None, None, None, 0, 0.3))
batches = st.sampled_from((False, False, False, True))
guards = st.sampled_from(GUARDS)


def the_same_always(examples: int) -> settings:
    """So many examples, and in every run the same ones; in ``make soak`` more, and others."""
    soak = settings()  # the profile that tests/reliability has loaded
    soaking = soak.max_examples > examples
    return settings(
        derandomize=not soaking,
        deadline=None,
        database=None,
        max_examples=soak.max_examples if soaking else examples,
        suppress_health_check=list(HealthCheck),
    )
