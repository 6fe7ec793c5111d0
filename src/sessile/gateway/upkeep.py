"""Upkeep: conversations that nobody uses any more are told of, or archived, as `session.maintenance` says.

It is looked at when the gateway starts and every few hours. In mode `warn`, the default, nothing goes; the log says what would.
Whatever fails is told and tried again the next time.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio

from sessile import apply_maintenance, plan_maintenance
from sessile.errors import SessileError

if TYPE_CHECKING:
    from sessile import MaintenancePlan
    from sessile.conversations.maintenance import Maintained
    from sessile.gateway.service import Gateway

_LOG = logging.getLogger(__name__)
_INTERVAL = 6 * 3600.0  # seconds


class Upkeep:
    """Looks after the conversations of a gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def run(self) -> None:
        """Look after all agents, again and again."""
        while True:
            try:
                await self._gateway.call(self._look)
            except SessileError as error:
                _LOG.warning("conversations were not looked after: %s", error.message)
            await anyio.sleep(_INTERVAL)

    def plan(self, agent: str) -> MaintenancePlan:
        """What would go now; blocks."""
        rules = self._gateway.config.session.maintenance
        return plan_maintenance(self._gateway.conversations, agent, rules, live=self._live(), pinned=self._pinned())

    def apply(self, plan: MaintenancePlan) -> Maintained:
        """Archive and remove what a plan says, if the mode is `enforce`; blocks."""
        return apply_maintenance(self._gateway.conversations, plan, live=self._live(), pinned=self._pinned())

    def _look(self) -> None:
        for agent in self._gateway.conversations.agents():
            plan = self.plan(agent)
            done = self.apply(plan)
            for told in done.told if plan.going or plan.sessions or done.failure else ():
                _LOG.warning("%s", told)
            if done.failure is not None:
                _LOG.warning("maintenance of %s has stopped: %s", agent, done.failure)

    def _live(self) -> set[str]:
        return self._gateway.turns.busy()

    def _pinned(self) -> list[str]:
        return self._gateway.store.pins.names()
