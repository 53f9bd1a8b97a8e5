"""Length-delimited fields of protobuf messages, written by hand where bytes are not to be copied. Pure."""


def field_head(field: int, length: int) -> bytes:
    """What stands before `length` bytes of that field: its tag, the length as a varint."""
    out = bytearray([field << 3 | 2])
    while length > 0x7F:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)
