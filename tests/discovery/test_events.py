from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from discovery import (
    Instance,
    InstanceAddedEvent,
    InstanceRemovedEvent,
    InstanceStatus,
    InstanceUpdatedEvent,
)
from discovery.events import changed_ids, diff

instances = st.builds(
    Instance,
    id=st.sampled_from("abcd"),
    namespace=st.just("n"),
    component=st.just("c"),
    address=st.sampled_from(["10.0.0.1", "10.0.0.2"]),
    port=st.just(80),
    incarnation=st.sampled_from(["one", "two"]),
    status=st.sampled_from(InstanceStatus),
)
sets = st.lists(instances, max_size=6).map(lambda listed: {i.id: i for i in listed})


def ready(known: dict[str, Instance]) -> dict[str, Instance]:
    return {k: i for k, i in known.items() if i.status is InstanceStatus.READY}


@given(sets, sets)
def test_applying_the_difference_gives_the_set(
    before: dict[str, Instance], known: dict[str, Instance]
) -> None:
    told, truth = ready(before), ready(known)
    removed_over = False
    for event in list(diff(told, truth, known, told.keys() | truth.keys())):
        match event:
            case InstanceRemovedEvent(instance):
                assert not removed_over, "removals come first"
                assert told.pop(instance.id) == instance
            case InstanceAddedEvent(instance):
                removed_over = True
                assert instance.id not in told, "Added alternates with Removed"
                told[instance.id] = instance
            case InstanceUpdatedEvent(old, new):
                removed_over = True
                assert told[new.id] == old
                assert old.incarnation == new.incarnation
                assert old != new
                told[new.id] = new
    assert told == truth


@given(sets, sets)
def test_only_changed_ids_need_to_be_compared(
    before: dict[str, Instance], known: dict[str, Instance]
) -> None:
    told, truth = ready(before), ready(known)
    everything = set(map(repr, diff(told, truth, known, told.keys() | truth.keys())))
    assert set(map(repr, diff(told, truth, known, changed_ids(told, truth)))) == everything


def test_the_reason_of_a_removal_follows_from_the_known_candidates() -> None:
    old = Instance("a", "n", "c", "10.0.0.1", 80, "one")

    def reason(now: Instance | None) -> str:
        known = {"a": now} if now else {}
        event = next(iter(diff({"a": old}, ready(known), known, {"a"})))
        assert isinstance(event, InstanceRemovedEvent)
        return event.reason

    assert reason(None) == "deleted"
    assert reason(replace(old, status=InstanceStatus.NOT_READY)) == "not_ready"
    assert reason(replace(old, status=InstanceStatus.DRAINING)) == "terminating"
    assert reason(replace(old, incarnation="two")) == "replaced"
    assert reason(replace(old, incarnation="two", status=InstanceStatus.NOT_READY)) == "replaced"


def test_events_carry_shortcuts_and_match_by_position() -> None:
    old = Instance("a", "n", "c", "10.0.0.1", 80, "one")
    new = replace(old, address="10.0.0.2")
    event = InstanceUpdatedEvent(old, new)
    assert (event.instance_id, event.address, event.instance) == ("a", "10.0.0.2", new)
    match event:
        case InstanceUpdatedEvent(first, second):
            assert (first, second) == (old, new)
