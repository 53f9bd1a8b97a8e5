"""The transactions by which a worker takes its key and rewrites it (pure)."""

from discovery.etcd.messages.etcd_pb2 import (
    Compare,
    KeyValue,
    PutRequest,
    RangeRequest,
    RequestOp,
    TxnRequest,
    TxnResponse,
)


def take(key: bytes, value: bytes, lease: int) -> TxnRequest:
    """Puts the record if nobody has the key; otherwise reads who has it."""
    is_free = Compare(target=Compare.CREATE, result=Compare.EQUAL, key=key, create_revision=0)
    return TxnRequest(compare=[is_free], success=[_put(key, value, lease)], failure=[_read(key)])


def rewrite(key: bytes, value: bytes | None, lease: int) -> TxnRequest:
    """Puts the record if the key hangs on our lease; `value` None: only asks whether it does."""
    is_ours = Compare(target=Compare.LEASE, result=Compare.EQUAL, key=key, lease=lease)
    return TxnRequest(compare=[is_ours], success=[] if value is None else [_put(key, value, lease)])


def replace(held: KeyValue, value: bytes, lease: int) -> TxnRequest:
    """Puts the record if the key is still as it was read; otherwise reads who has it."""
    key = held.key
    is_same = Compare(target=Compare.MOD, result=Compare.EQUAL, key=key, mod_revision=held.mod_revision)
    return TxnRequest(compare=[is_same], success=[_put(key, value, lease)], failure=[_read(key)])


def holder(answer: TxnResponse) -> KeyValue | None:
    """Who has the key, in the answer to what failed; None: nobody any more."""
    kvs = answer.responses[0].response_range.kvs if answer.responses else []
    return kvs[0] if kvs else None


def _put(key: bytes, value: bytes, lease: int) -> RequestOp:
    return RequestOp(request_put=PutRequest(key=key, value=value, lease=lease))


def _read(key: bytes) -> RequestOp:
    return RequestOp(request_range=RangeRequest(key=key))
