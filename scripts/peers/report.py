"""Medians over rounds, and Markdown tables of them."""

import statistics

# key, heading, form, and whether less is better (None: neither).
COLUMNS = [
    ("wall_ratio", "wall ×", "{:.3f}", True),
    ("cpu_ratio", "CPU ×", "{:.3f}", True),
    ("ops_ratio", "ops ×", "{:.3f}", False),
    ("p99_ms", "p99 ms", "{:.2f}", True),
    ("gap_ms", "longest gap ms", "{:.0f}", True),
    ("attach_s", "attach s", "{:.2f}", True),
    ("recording_cpu_s", "recording CPU s", "{:.3f}", True),
    ("after_cpu_s", "after CPU s", "{:.3f}", True),
    ("recording_peak_mb", "recording MB", "{:.1f}", True),
    ("after_peak_mb", "after MB", "{:.1f}", True),
    ("saved_s", "saved s", "{:.2f}", None),
    ("no_inline_s", "SVG s", "{:.2f}", True),
    ("inlines_s", "SVG with inlines s", "{:.2f}", True),
    ("recording_mb", "file MB", "{:.2f}", None),
    ("svg_mb", "SVG MB", "{:.3f}", None),
    ("counts", "counts %", "{:.1f}", None),
    ("complete", "complete %", "{:.1f}", False),
    ("off", "shares off", "{:.2f}", True),
]
SHOTS = [
    ("wall_ratio", "wall ×", "{:.3f}", True),
    ("gap_ms", "longest gap ms", "{:.0f}", True),
    ("tool_s", "took s", "{:.3f}", True),
    ("tool_cpu_s", "CPU s", "{:.3f}", True),
    ("tool_peak_mb", "peak MB", "{:.1f}", True),
    ("threads", "threads", "{:.0f}", None),
    ("complete", "complete %", "{:.1f}", False),
]
BASE = "alone"
OURS = ("stackprof", "stackprof dump stacks")
# Below these a difference is not told: in parts of the peer's, and in what the column counts.
WORSE_BY = 0.05
LEAST = {"wall_ratio": 0.02, "cpu_ratio": 0.01, "p99_ms": 0.05, "attach_s": 0.1, "recording_cpu_s": 0.02, "after_cpu_s": 0.05,
         "recording_peak_mb": 1, "after_peak_mb": 1, "no_inline_s": 0.05, "inlines_s": 0.05, "complete": 0.5, "off": 1.0,
         "ops_ratio": 0.02, "gap_ms": 5, "tool_s": 0.02, "tool_cpu_s": 0.01, "tool_peak_mb": 1}


def ratios(rounds):
    """Adds to each row what its target took, beside that of the same round without a profiler."""
    for rows in rounds:
        base = rows.get(BASE)
        for row in rows.values():
            for key, of in (("wall_ratio", "wall_s"), ("cpu_ratio", "cpu_s"), ("ops_ratio", "ops")):
                if base and base.get(of) and row.get(of):
                    row[key] = row[of] / base[of]


def medians(rounds):
    """{tool: {key: median over the rounds that have it}}"""
    ratios(rounds)
    out = {}
    for name in {name: None for rows in rounds for name in rows}:
        values = {}
        for rows in rounds:
            for key, value in rows.get(name, {}).items():
                if isinstance(value, (int, float)):
                    values.setdefault(key, []).append(value)
        out[name] = {key: statistics.median(each) for key, each in values.items()}
    return out


def unrest(rounds):
    """How far the runs without a profiler lie apart: what a ratio of wall-clock time is worth here."""
    walls = [rows[BASE]["wall_s"] for rows in rounds if BASE in rows]
    return (max(walls) - min(walls)) / statistics.median(walls) if walls else 0.0


def table(found, columns):
    """One Markdown table; columns that nobody has are left out."""
    columns = [column for column in columns if any(column[0] in row for row in found.values())]
    lines = ["| | " + " | ".join(heading for _, heading, *_ in columns) + " |", "|---|" + "--:|" * len(columns)]
    order = [BASE, *sorted((name for name in found if name != BASE), key=lambda name: (name not in OURS, name))]
    for name in order:
        if name in found:
            cells = (form.format(found[name][key]) if key in found[name] else "" for key, _, form, _ in columns)
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def worse(rounds, columns):
    """[text] of everything in which a peer is better than stackprof: by its median, and in three of four rounds.

    The median alone would tell the noise of the machine.
    """
    found, lines = medians(rounds), []
    ours = next((name for name in OURS if name in found), "")
    for key, heading, form, less in columns:
        theirs = {name: row[key] for name, row in found.items() if name not in (*OURS, BASE) and key in row
                  and (not key.startswith("after") or "inlines_s" in row)}  # who makes no picture has nothing to do
        if less is None or key not in found.get(ours, {}) or not theirs:
            continue
        name = (min if less else max)(theirs, key=theirs.get)
        sign = 1 if less else -1
        pairs = [(rows[ours][key] - rows[name][key]) * sign for rows in rounds if key in rows.get(ours, {}) and key in rows.get(name, {})]
        better = sum(pair > 0 for pair in pairs)
        least = max(LEAST.get(key, 0), 0 if key.endswith("ratio") else WORSE_BY * abs(theirs[name]))
        if (found[ours][key] - theirs[name]) * sign > least and better * 4 >= len(pairs) * 3:
            lines.append(f"{heading}: {form.format(found[ours][key])}, {name} {form.format(theirs[name])} (better in {better} of {len(pairs)} rounds)")
    return lines


def section(title, part, columns):
    """A workload's heading, table, and where stackprof is worse; what could not be measured stands there too."""
    rounds = part["rounds"]
    lines = [f"### {title}", ""]
    found = medians(rounds)
    if BASE in found:
        base = found[BASE]
        # Programs that run for ever tell their rate; their time per operation says nothing to a reader.
        took = f"{base['wall_s']:.2f} s, {base['cpu_s']:.2f} s of CPU time" if base["wall_s"] > 0.1 else f"{base.get('ops', 0):.3g} operations/s"
        lines += [f"Without a profiler {took}; its {len(rounds)} runs are {100 * unrest(rounds):.0f} % apart.", ""]
    lines += [table(found, columns), ""]
    lines += [f"- {name}: {text}" for name, text in part.get("troubles", {}).items()]
    lines += [f"- stackprof is worse in {text}" for text in worse(rounds, columns)]
    return "\n".join(lines) + "\n"
