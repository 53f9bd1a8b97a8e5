"""Encodes the head of a length-delimited protobuf field, so that its bytes can be sent without a copy. Pure."""


def field_head(field: int, length: int) -> bytes:
    """The tag of the field (wire type 2) and its length as a varint."""
    out = bytearray([field << 3 | 2])
    while length > 0x7F:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)
