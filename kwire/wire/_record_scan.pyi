from kwire.wire.primitives import Buffer

def scan(
    payload: Buffer, count: int, base_timestamp: int, earliest: int, latest: int, keys_required: bool, /
) -> tuple[int, int, int, bool, int, bool, list[tuple[int, int, int, int]]]: ...
