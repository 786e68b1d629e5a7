"""What stacks of the firmware in tests/fixtures/boards can be: which function calls which, and how deep."""

LEAVES = {"leaf_40", "leaf_30", "leaf_20", "leaf_10"}
CALLS = {
    "Reset_Handler": {"main"},
    "_start": {"main"},
    "main": {"recurse", "start_timer", "vTaskStartScheduler", "xTaskCreate"},
    "recurse": {"recurse", "roomy", "spread"},
    "roomy": {"recurse"},
    "spread": LEAVES,
    "SysTick_Handler": {"tick", "lock", "unlock", "xTaskIncrementTick"},
    "irq_entry": {"irq"},
    "irq": {"tick"},
    "tick": {"in_tick"},
    "PendSV_Handler": {"vTaskSwitchContext"},
    "xTaskIncrementTick": {"uxListRemove", "make_ready"},
    "make_ready": {"vListInsertEnd"},
    "vListInsertEnd": {"put_before"},
    "vListInsert": {"put_before"},
    "vTaskStartScheduler": {"start_timer", "prvPortStartFirstTask"},
    "a_task": {"a_middle"},
    "a_middle": {"a_leaf"},
    "b_task": {"b_deep"},
    "b_deep": {"b_deep", "b_leaf"},
    "c_task": {"c_sleep"},
    "c_sleep": {"vTaskDelay"},
    "d_task": {"d_suspend"},
    "d_suspend": {"vTaskSuspend"},
    "vTaskDelay": {"uxListRemove", "vListInsert", "lock", "unlock"},
    "vTaskSuspend": {"uxListRemove", "vListInsertEnd", "lock", "unlock"},
}
ROOTS = {"Reset_Handler", "_start", "a_task", "b_task", "c_task", "d_task", "idle_task"}
HANDLERS = {"SysTick_Handler", "PendSV_Handler", "SVC_Handler", "irq_entry"}
EXCEPTION = "[exception]"


def plain(name):
    """A name as in the source; exceptions without their number."""
    if name.startswith("[exception") or name == "<signal handler called>":
        return EXCEPTION
    return name.split(".")[0]


def whole(names):
    """Names up to the function that a program or task begins with. gdb goes on from there: to the address that a task's stack
    was made with, where nothing called."""
    names = [name for name in map(plain, names) if name != "burn"]
    end = next((at for at, name in enumerate(names) if name in ROOTS), None)
    return names if end is None else names[: end + 1]


def is_right(names):
    """Whether a whole stack, the innermost function first, can be one."""
    names = [name for name in map(plain, names) if name != "burn"]
    # An interrupt's own stack, and below it what it interrupted.
    for at, name in enumerate(names):
        if name == EXCEPTION or name == "irq_entry":
            above = names[:at] if name == EXCEPTION else names[: at + 1]
            below = names[at + 1 :]
            return (not above or above[-1] in HANDLERS) and chain(above) and is_right(below) and bool(below)
    return bool(names) and names[-1] in ROOTS and chain(names) and depths(names)


def chain(names):
    return all(called in CALLS.get(caller, ()) for called, caller in zip(names, names[1:]))


def depths(names):
    """From `spread` outwards every fourth call of `recurse` is behind `roomy`; `b_leaf` is seven deep."""
    if "b_leaf" in names and names.count("b_deep") != 7:
        return False
    if "spread" not in names:
        return True
    depth = 0
    rest = names[names.index("spread") + 1 :]
    while rest:
        if rest[0] == "main":
            return True
        if rest[0] == "roomy":
            if depth == 0 or depth % 4 or rest[1:2] != ["recurse"]:
                return False
            rest = rest[1:]
        elif rest[0] != "recurse" or (depth > 0 and depth % 4 == 0):
            return False
        depth += 1
        rest = rest[1:]
    return False
