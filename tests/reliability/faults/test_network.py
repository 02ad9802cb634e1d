"""Connections break, stall, or end in the middle of a packet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.reliability.faults.network import CutInMidPacket, HalfOpen, Reset, Stalled
from tests.reliability.faults.proxy import Proxy, proxy_to
from tests.reliability.faults.scene import Scene

pytestmark = [pytest.mark.soak, pytest.mark.databases("postgresql", "mysql", "mariadb")]


@pytest.fixture
def proxy(scene: Scene) -> Iterator[Proxy]:
    with proxy_to(scene.url) as proxy:
        yield proxy


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Reset, HalfOpen, Stalled, CutInMidPacket])
def test_a_network_fails(
    scene: Scene,
    proxy: Proxy,
    kind: type[Reset | HalfOpen | Stalled | CutInMidPacket],
) -> None:
    scene.survives(scene.engine(proxy.url), kind(proxy), share=0.08)
