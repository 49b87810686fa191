"""The roles of a replica: every legal transition, and no others."""

from __future__ import annotations

from itertools import product

import pytest

from kwire.broker.replication.roles import TRANSITIONS, Role, RoleChange, role_after

LEGAL = """
absent    BECOME_LEADER leader    BECOME_FOLLOWER follower    FAIL offline
leader    BECOME_LEADER leader    BECOME_FOLLOWER follower    FAIL offline    REMOVE absent
follower  BECOME_LEADER leader    BECOME_FOLLOWER follower    FAIL offline    REMOVE absent
offline   BECOME_LEADER offline   BECOME_FOLLOWER offline     FAIL offline    REMOVE absent
"""


def legal_changes() -> dict[tuple[Role, RoleChange], Role]:
    found = {}
    for line in LEGAL.strip().splitlines():
        role, *changes = line.split()
        for change, then in zip(changes[::2], changes[1::2], strict=True):
            found[Role(role), RoleChange[change]] = Role(then)
    return found


@pytest.mark.parametrize(("role", "change"), list(product(Role, RoleChange)))
def test_role_change_is_legal_or_raises(role: Role, change: RoleChange) -> None:
    expected = legal_changes().get((role, change))
    if expected is not None:
        assert role_after(role, change) is expected
    else:
        with pytest.raises(AssertionError, match=f"{role.value} cannot {change.value}"):
            role_after(role, change)


def test_table_has_every_role() -> None:
    assert set(TRANSITIONS) == set(Role)
