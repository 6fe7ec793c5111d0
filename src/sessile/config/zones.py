"""The time zone of a person: the one that was named, else that of this machine, with its changes of the clocks.

Where the machine keeps it is known to `storage.local_zone`. Only where nothing at all says what the zone is, the offset of the
clock as it is now has to do.
"""

from __future__ import annotations

from datetime import tzinfo

from sessile.storage.local_zone import current_offset, machine_zone, zone_named


def local_zone(name: str | None = None) -> tzinfo:
    """The zone of a name such as `Europe/Berlin`, else that of this machine; raises `InvalidConfig` for one that is not known."""
    if name is not None:
        return zone_named(name)
    return machine_zone() or current_offset()
