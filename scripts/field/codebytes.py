"""Which addresses of a process can be return addresses: those in code, right behind a call.

Tells where a debugger has left the stack (a number that is no return address is no caller),
and where stackprof has. x86_64 only; elsewhere nothing is refuted.
"""

import platform
import re
from dataclasses import dataclass, field

from process import read

BEFORE = 8
DIRECT_CALL = b"\xe8"


def ends_with_call(code):
    """True if some call instruction ends where these bytes end."""
    if len(code) >= 5 and code[-5] == 0xE8:
        return True
    # FF /2 with a register, memory, SIB and displacement: 2 to 7 bytes; prefixes do not matter.
    for length in range(2, 8):
        if len(code) < length or code[-length] != 0xFF:
            continue
        modrm = code[-length + 1]
        mode, operation, rm = modrm >> 6, modrm >> 3 & 7, modrm & 7
        if operation != 2:
            continue
        size = 2
        if mode != 3 and rm == 4:
            size += 1
            if mode == 0 and length > 2 and code[-length + 2] & 7 == 5:
                size += 4
        if mode == 0 and rm == 5:
            size += 4
        size += {0: 0, 1: 1, 2: 4, 3: 0}[mode]
        if size == length:
            return True
    return False


class Code:
    """The code of a process that stands."""

    def __init__(self, pid):
        self.ranges = []
        for start, end, flags in re.findall(r"^([0-9a-f]+)-([0-9a-f]+) (\S+)", read(f"/proc/{pid}/maps"), re.MULTILINE):
            if "x" in flags:
                self.ranges.append((int(start, 16), int(end, 16)))
        self.path = f"/proc/{pid}/mem"
        self.known = {}

    def follows_call(self, address):
        """Whether `address` is right behind a call, or the address before it is (as stackprof tells it)."""
        if platform.machine() != "x86_64":
            return True
        if address not in self.known:
            self.known[address] = self.read_call(address) or self.read_call(address + 1)
        return self.known[address]

    def read_call(self, address):
        if not any(start < address <= end for start, end in self.ranges):
            return False
        return ends_with_call(self.bytes_at(address - BEFORE, BEFORE))

    def bytes_at(self, address, count):
        """As many of the bytes as can be read."""
        try:
            with open(self.path, "rb", buffering=0) as memory:
                memory.seek(address)
                return memory.read(count)
        except (OSError, OverflowError, ValueError):
            return b""

    def facts(self, stacks):
        """What the code says of the addresses of these stacks."""
        callers = [address for stack in stacks for address in stack.addresses[1:]]
        return Facts(frozenset(address for address in callers if not self.follows_call(address)),
                     frozenset(address for address in callers if self.returns_from_signal(address)),
                     frozenset(self.return_address_on_top(stack.top) for stack in stacks if stack.top),
                     {at: target for address in callers for at in (address, address + 1)
                      if (target := self.called_directly(at)) is not None},
                     {stack.addresses[0]: returns_to for stack in stacks if stack.top and stack.addresses
                      if (returns_to := self.returns_without_frame(stack.addresses[0], stack.top[0])) is not None})

    def returns_without_frame(self, leaf, pointer):
        """Where the innermost function returns to, if the instruction that is next is one that makes its frame or
        has taken it off, as compilers of Java write them; None otherwise."""
        before, code = self.bytes_at(leaf - BEFORE, BEFORE), self.bytes_at(leaf, BEFORE)
        # push %rbp; mov %eax,-N(%rsp); ret; cmp N(%r15),%rsp behind pop %rbp; ja behind that
        on_top = code[:1] in (b"\x55", b"\xc3", b"\xc2") or code[:3] == bytes.fromhex("898424") \
            or code[:3] == bytes.fromhex("493ba7") and before[-1:] == b"\x5d" \
            or code[:1] in (b"\x77", b"\x0f") and before[-7:-4] == bytes.fromhex("493ba7")
        # pop %rbp; sub $N,%rsp behind push %rbp
        below = code[:1] == b"\x5d" \
            or code[:3] in (bytes.fromhex("4883ec"), bytes.fromhex("4881ec")) and before[-1:] == b"\x55"
        return self.words(pointer)[below] if on_top or below else None

    def called_directly(self, address):
        """Where the direct call right before `address` leads; None without one."""
        code = self.bytes_at(address - 5, 5)
        if len(code) < 5 or code[:1] != DIRECT_CALL:
            return None
        return address + int.from_bytes(code[1:], "little", signed=True)

    def returns_from_signal(self, address):
        """Whether the trampoline behind a signal handler begins here: `mov $15,%eax; syscall`."""
        code = self.bytes_at(address, 9)
        return code == bytes.fromhex("48c7c00f0000000f05") or code[:7] == bytes.fromhex("b80f0000000f05")

    def return_address_on_top(self, top):
        """Where the innermost function returns to, if it has not begun its frame or has ended it.

        That is on top of the stack at its entry and its `ret`, one below the caller's rbp
        after `push %rbp`.
        """
        pointer, frame = top
        first, second = self.words(pointer)
        return second if first == frame else first

    def words(self, address):
        data = self.bytes_at(address, 16).ljust(16, b"\0")
        return int.from_bytes(data[:8], "little"), int.from_bytes(data[8:], "little")


@dataclass(frozen=True)
class Facts:
    """Addresses that are no return addresses, those of a signal handler's trampoline, and those on
    top of the stacks of functions that have no frame at this moment; where the direct calls
    lead that stand right before addresses; and by leaf where it returns to, if its next instruction says
    that its frame does not stand."""

    no_callers: frozenset = frozenset()
    trampolines: frozenset = frozenset()
    on_top: frozenset = frozenset()
    calls: dict = field(default_factory=dict)
    returns_to: dict = field(default_factory=dict)
