"""Run by gdb: the address of every physical frame of every thread, innermost first.

Prints `thread TID`, `top SP RBP` and one line `ADDRESS NAME` per frame; inlined frames have no address
of their own and are left out. At most as many frames as FIELD_FRAMES_MAX says.
"""

import os

import gdb

frames_max = int(os.environ.get("FIELD_FRAMES_MAX", "400"))
for thread in sorted(gdb.selected_inferior().threads(), key=lambda thread: thread.ptid[1]):
    thread.switch()
    print(f"thread {thread.ptid[1]}")
    count = 0
    try:
        frame = gdb.newest_frame()
        print(f"top {int(frame.read_register('sp')):#x} {int(frame.read_register('rbp')):#x}")
        while frame is not None and count < frames_max:
            if frame.type() != gdb.INLINE_FRAME:
                print(f"{frame.pc():#x} {frame.name() or '??'}")
                count += 1
            why = frame.unwind_stop_reason()
            if frame.older() is None and why != gdb.FRAME_UNWIND_NO_REASON:
                print(f"end {gdb.frame_stop_reason_string(why)}")
            frame = frame.older()
    except gdb.error as error:
        print(f"end {error}")
