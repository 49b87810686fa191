"""A model test of classic groups: partition owners and committed offsets under random orders of events.

Clients behave as Kafka's: they join, sync, send heartbeats, commit while they own partitions, leave or
disappear. The coordinator sometimes restarts.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kwire.wire.errors import ErrorCode
from kwire.wire.records.groups import GroupMetadataValue
from tests.coordinator.coordinator_harness import Config, CoordinatorHarness, Reply

PARTITIONS = range(3)
SESSION_MS = 10_000
seldom = st.sampled_from([False, False, False, True])


class Client:
    """The state of one client."""

    def __init__(self, instance_id: str | None) -> None:
        self.instance_id = instance_id
        self.member_id = ""
        self.joining: Reply | None = None
        self.joined: Any = None
        """The response to its last JoinGroup."""
        self.syncing: Reply | None = None
        self.owned: frozenset[int] | None = None
        """Its partitions in the generation of `joined`, or None without an assignment."""

    def forget(self) -> None:
        """Reset the state of a client that is no longer a member."""
        self.__init__(self.instance_id)  # type: ignore[misc]

    @property
    def is_idle(self) -> bool:
        return self.joining is None and self.syncing is None


def owner_of(client: Client) -> Client | str:
    """Return the identity of a client across its incarnations."""
    return client.instance_id or client


class ClassicGroupsModel(RuleBasedStateMachine):
    """Random events of the clients of one group, its coordinator and time."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = CoordinatorHarness(Config(group_initial_rebalance_delay_ms=0))
        self.clients: list[Client] = []
        self.committed: dict[int, int] = {}
        self.newest_generation = 0
        """The newest generation that a client has received."""
        self.owner_by_generation: dict[tuple[int, int], Client | str] = {}
        """Owners by generation and partition. All incarnations of a static member are one owner."""

    # --- clients

    def join(self, client: Client) -> None:
        client.owned = None
        client.joined = client.syncing = None
        client.joining = self.harness.join(
            member=client.member_id, instance=client.instance_id, session_ms=SESSION_MS, rebalance_ms=20_000
        )
        self.receive_responses(client)

    def receive_responses(self, client: Client) -> None:
        """Process the responses that have arrived."""
        if client.joining is not None and not client.joining.pending:
            response, client.joining = client.joining.value, None
            if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                client.member_id = response.member_id
                self.join(client)
            elif response.error_code:
                client.forget()
            else:
                client.member_id, client.joined = response.member_id, response
                self.newest_generation = max(self.newest_generation, response.generation_id)
        if client.syncing is not None and not client.syncing.pending:
            response, client.syncing = client.syncing.value, None
            if response.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
                client.joined = None
            elif response.error_code:
                client.forget()
            else:
                client.owned = frozenset(response.assignment)
                for partition in client.owned:
                    key = (client.joined.generation_id, partition)
                    owner = self.owner_by_generation.setdefault(key, owner_of(client))
                    assert owner == owner_of(client), f"{partition} has two owners in generation {key[0]}"

    def receive_all_responses(self) -> None:
        for client in self.clients:
            self.receive_responses(client)

    # --- rules

    @initialize(count=st.integers(1, 3))
    def add_initial_clients(self, count: int) -> None:
        for _ in range(count):
            self.add_client(None)

    @precondition(lambda self: len(self.clients) < 4)
    @rule(instance_id=st.sampled_from([None, None, "i"]))
    def add_client(self, instance_id: str | None) -> None:
        client = Client(instance_id)
        self.clients.append(client)
        self.join(client)
        self.receive_all_responses()

    @precondition(lambda self: any(client.is_idle for client in self.clients))
    @rule(data=st.data())
    def one_sends_its_next_request(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from([client for client in self.clients if client.is_idle]))
        self.send_next_request(client, data.draw(st.permutations(PARTITIONS)))
        self.receive_all_responses()

    @precondition(lambda self: any(client.is_idle for client in self.clients))
    @rule(order=st.permutations(PARTITIONS))
    def all_send_their_next_request(self, order: list[int]) -> None:
        """Let each idle client send its next request, then advance one second."""
        for client in self.clients:
            if client.is_idle:
                self.send_next_request(client, order)
        self.harness.advance(1_000)
        self.receive_all_responses()

    def send_next_request(self, client: Client, order: list[int]) -> None:
        """Send the next request of a client: JoinGroup, SyncGroup or Heartbeat."""
        if client.joined is None:
            self.join(client)
        elif client.owned is None:
            # Only the leader receives the members.
            members = [member.member_id for member in client.joined.members]
            assignments = {member: bytes(order[at :: len(members)]) for at, member in enumerate(members)}
            client.syncing = self.harness.sync(client.joined, assignments, instance=client.instance_id)
        else:
            code = self.harness.heartbeat(client.joined, instance=client.instance_id)
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                self.join(client)
            elif code:
                client.forget()

    @precondition(lambda self: any(client.owned for client in self.clients))
    @rule(data=st.data(), advance=st.integers(0, 3), arrives=st.booleans())
    def commit(self, data: st.DataObject, advance: int, arrives: bool) -> None:
        client = data.draw(st.sampled_from([client for client in self.clients if client.owned]))
        assert client.owned is not None
        partition = data.draw(st.sampled_from(sorted(client.owned)))
        offset = self.committed.get(partition, 0) + advance
        reply = self.harness.commit(
            offset, partition=partition, generation=client.joined.generation_id, member=client.member_id
        )
        if reply.value == ErrorCode.NONE:
            assert client.joined.generation_id == self.newest_generation, (
                "a commit from an old generation succeeded"
            )
            self.committed[partition] = offset
        elif reply.value != ErrorCode.REBALANCE_IN_PROGRESS and arrives:
            client.forget()

    @precondition(lambda self: any(client.member_id and client.is_idle for client in self.clients))
    @rule(data=st.data(), does=seldom)
    def leave(self, data: st.DataObject, does: bool) -> None:
        if not does:
            return
        in_group = [client for client in self.clients if client.member_id and client.is_idle]
        client = data.draw(st.sampled_from(in_group))
        self.harness.leave((client.member_id, client.instance_id))
        self.clients.remove(client)
        self.receive_all_responses()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), does=seldom)
    def disappear(self, data: st.DataObject, does: bool) -> None:
        """Remove a client that sends no LeaveGroup; responses to it are lost."""
        if does:
            self.clients.remove(data.draw(st.sampled_from(self.clients)))

    @precondition(lambda self: any(client.owned for client in self.clients))
    @rule(data=st.data())
    def lose_a_join_response(self, data: st.DataObject) -> None:
        """Lose the response to a JoinGroup while the other clients continue."""
        client = data.draw(st.sampled_from([client for client in self.clients if client.owned]))
        self.harness.join(
            member=client.member_id,
            instance=client.instance_id,
            session_ms=SESSION_MS,
            rebalance_ms=20_000,
            can_skip=False,
        )
        self.receive_all_responses()
        for _ in range(3):
            for other in self.clients:
                if other is not client and other.is_idle:
                    self.send_next_request(other, list(PARTITIONS))
            self.receive_all_responses()

    @rule(seconds=st.sampled_from([1, 1, 1, 5, 11, 25]))
    def pass_time(self, seconds: int) -> None:
        self.harness.advance(seconds * 1000)
        self.receive_all_responses()

    @rule(does=seldom)
    def restart_coordinator(self, does: bool) -> None:
        if does:
            self.harness.restart()
            self.receive_all_responses()
            # A generation whose assignment was not stored is forgotten.
            stored = [value for _, value in self.harness.records() if isinstance(value, GroupMetadataValue)]
            self.newest_generation = stored[-1].generation if stored else 0

    # --- invariants

    @invariant()
    def committed_offsets_are_returned(self) -> None:
        fetched = {partition: offset for (_, partition), offset in self.harness.offsets().items()}
        assert fetched == self.committed

    @invariant()
    def no_sync_waits_in_a_settled_group(self) -> None:
        if self.harness.state() in ("Stable", "Empty", None):
            assert all(client.syncing is None for client in self.clients)


TestClassicGroups = ClassicGroupsModel.TestCase
TestClassicGroups.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
