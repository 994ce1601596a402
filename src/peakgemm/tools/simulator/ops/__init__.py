"""What each instruction does: one builder an opcode, registered when its module is imported."""

from . import (  # noqa: F401
    async_copy,
    atomic,
    bits,
    control,
    convert,
    float,
    int,
    mbarrier,
    memory,
    select,
    store,
    tensor,
    warp,
    wgmma,
)
