"""An ioctl made the way a 32-bit program makes it, from a 64-bit one: there is no 32-bit C library in the guest.

The kernel tells 32-bit callers by the entry they take (`int 0x80`, Documentation/arch/x86/entry_64.rst), not by the
program. x86-64 only.
"""

from __future__ import annotations

import ctypes
import mmap
import os

MAP_32BIT = 0x40
# push rbx; mov eax, 54 (ioctl of the 32-bit table); mov ebx, edi; mov ecx, esi; int 0x80; pop rbx; ret
CODE = bytes.fromhex("53 b8 36 00 00 00 89 fb 89 f1 cd 80 5b c3")
ARGUMENT_OFFSET = 2048


def ioctl32(descriptor: int, request: int, argument: bytes) -> bytes:
    """The argument as the kernel left it. Raises OSError with its errno."""
    with mmap.mmap(
        -1,
        mmap.PAGESIZE,
        flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_32BIT,
        prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC,
    ) as memory:
        memory[: len(CODE)] = CODE
        memory[ARGUMENT_OFFSET : ARGUMENT_OFFSET + len(argument)] = argument
        anchor = ctypes.c_char.from_buffer(memory)
        address = ctypes.addressof(anchor)
        entry = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint)(address)
        result = entry(descriptor, request, address + ARGUMENT_OFFSET)
        answer = memory[ARGUMENT_OFFSET : ARGUMENT_OFFSET + len(argument)]
        # The mapping cannot be closed while something points into it.
        del anchor
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return answer
