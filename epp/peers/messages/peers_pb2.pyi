from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class News(_message.Message):
    __slots__ = ("hello", "anew", "age_ms", "endpoints", "models", "layout", "picks", "moves", "served", "failed", "unhelped", "helped", "begun", "ended", "ejections", "log_entries", "learnt", "queues")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ANEW_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    PICKS_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    SERVED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    UNHELPED_FIELD_NUMBER: _ClassVar[int]
    HELPED_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    EJECTIONS_FIELD_NUMBER: _ClassVar[int]
    LOG_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    LEARNT_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    anew: bool
    age_ms: int
    endpoints: _containers.RepeatedCompositeFieldContainer[Endpoint]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    layout: int
    picks: Picks
    moves: _containers.RepeatedCompositeFieldContainer[Move]
    served: _containers.RepeatedScalarFieldContainer[int]
    failed: _containers.RepeatedScalarFieldContainer[int]
    unhelped: _containers.RepeatedCompositeFieldContainer[Move]
    helped: _containers.RepeatedScalarFieldContainer[int]
    begun: _containers.RepeatedScalarFieldContainer[int]
    ended: _containers.RepeatedScalarFieldContainer[int]
    ejections: Ejections
    log_entries: _containers.RepeatedScalarFieldContainer[bytes]
    learnt: Learnt
    queues: Queues
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., anew: _Optional[bool] = ..., age_ms: _Optional[int] = ..., endpoints: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ..., models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ..., layout: _Optional[int] = ..., picks: _Optional[_Union[Picks, _Mapping]] = ..., moves: _Optional[_Iterable[_Union[Move, _Mapping]]] = ..., served: _Optional[_Iterable[int]] = ..., failed: _Optional[_Iterable[int]] = ..., unhelped: _Optional[_Iterable[_Union[Move, _Mapping]]] = ..., helped: _Optional[_Iterable[int]] = ..., begun: _Optional[_Iterable[int]] = ..., ended: _Optional[_Iterable[int]] = ..., ejections: _Optional[_Union[Ejections, _Mapping]] = ..., log_entries: _Optional[_Iterable[bytes]] = ..., learnt: _Optional[_Union[Learnt, _Mapping]] = ..., queues: _Optional[_Union[Queues, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("version", "oldest", "name")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    version: int
    oldest: int
    name: str
    def __init__(self, version: _Optional[int] = ..., oldest: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("number", "id", "incarnation")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    number: int
    id: str
    incarnation: str
    def __init__(self, number: _Optional[int] = ..., id: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("number", "name")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    number: int
    name: str
    def __init__(self, number: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class Picks(_message.Message):
    __slots__ = ("numbers", "endpoints", "models", "prompt_bytes", "held", "streaming", "units", "backs", "shared", "fresh", "blocks", "helpers")
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    STREAMING_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    BACKS_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HELPERS_FIELD_NUMBER: _ClassVar[int]
    numbers: _containers.RepeatedScalarFieldContainer[int]
    endpoints: _containers.RepeatedScalarFieldContainer[int]
    models: _containers.RepeatedScalarFieldContainer[int]
    prompt_bytes: _containers.RepeatedScalarFieldContainer[int]
    held: _containers.RepeatedScalarFieldContainer[int]
    streaming: _containers.RepeatedScalarFieldContainer[bool]
    units: _containers.RepeatedScalarFieldContainer[int]
    backs: _containers.RepeatedScalarFieldContainer[int]
    shared: _containers.RepeatedScalarFieldContainer[int]
    fresh: _containers.RepeatedScalarFieldContainer[int]
    blocks: bytes
    helpers: _containers.RepeatedCompositeFieldContainer[Helper]
    def __init__(self, numbers: _Optional[_Iterable[int]] = ..., endpoints: _Optional[_Iterable[int]] = ..., models: _Optional[_Iterable[int]] = ..., prompt_bytes: _Optional[_Iterable[int]] = ..., held: _Optional[_Iterable[int]] = ..., streaming: _Optional[_Iterable[bool]] = ..., units: _Optional[_Iterable[int]] = ..., backs: _Optional[_Iterable[int]] = ..., shared: _Optional[_Iterable[int]] = ..., fresh: _Optional[_Iterable[int]] = ..., blocks: _Optional[bytes] = ..., helpers: _Optional[_Iterable[_Union[Helper, _Mapping]]] = ...) -> None: ...

class Helper(_message.Message):
    __slots__ = ("row", "endpoint", "held", "computes")
    ROW_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    COMPUTES_FIELD_NUMBER: _ClassVar[int]
    row: int
    endpoint: int
    held: int
    computes: bool
    def __init__(self, row: _Optional[int] = ..., endpoint: _Optional[int] = ..., held: _Optional[int] = ..., computes: _Optional[bool] = ...) -> None: ...

class Move(_message.Message):
    __slots__ = ("number", "endpoint")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    number: int
    endpoint: int
    def __init__(self, number: _Optional[int] = ..., endpoint: _Optional[int] = ...) -> None: ...

class Ejections(_message.Message):
    __slots__ = ("endpoints",)
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    endpoints: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, endpoints: _Optional[_Iterable[int]] = ...) -> None: ...

class Queues(_message.Message):
    __slots__ = ("priorities", "waiting")
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    priorities: _containers.RepeatedScalarFieldContainer[int]
    waiting: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, priorities: _Optional[_Iterable[int]] = ..., waiting: _Optional[_Iterable[int]] = ...) -> None: ...

class Learnt(_message.Message):
    __slots__ = ("seconds", "answers")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    seconds: _containers.RepeatedScalarFieldContainer[float]
    answers: int
    def __init__(self, seconds: _Optional[_Iterable[float]] = ..., answers: _Optional[int] = ...) -> None: ...
