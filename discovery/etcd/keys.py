"""Under which keys instances are: `/prefix/namespace/component/instance-id` (pure)."""

from discovery.source import ComponentKey, component_key


def component_prefix(prefix: str, key: ComponentKey) -> bytes:
    """What the keys of all instances of one component begin with; `prefix` has a slash at both ends."""
    return f"{prefix}{key.namespace}/{key.component}/".encode()


def instance_key(prefix: str, key: ComponentKey, instance_id: str) -> bytes:
    return component_prefix(prefix, key) + instance_id.encode()


def range_end(prefix: bytes) -> bytes:
    """The first key after all that begin with `prefix`, which ends in a slash."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def component_of(prefix: str, key: bytes) -> ComponentKey | None:
    """None if nothing of ours is under that key."""
    # bounded: four parts
    parts = key.removeprefix(prefix.encode()).split(b"/", 3)
    if len(parts) != 3:
        return None
    try:
        return component_key(parts[0].decode(), parts[1].decode())
    except ValueError:
        return None
