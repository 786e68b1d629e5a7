"""Counts what stops.py found: one row for each build, then each stop in which stackprof and gdb differ."""

import collections
import json
import sys

LEAST = 0.995
SHOWN_MAX = 200

rows = collections.defaultdict(collections.Counter)
different, wrong = [], []
with open(sys.argv[1], encoding="utf-8") as results:
    for line in results:
        stop = json.loads(line)
        row = rows[stop["build"], stop["kind"]]
        row["stops"] += 1
        row["complete"] += stop["complete"]
        row["right"] += stop["complete"] and stop["right"]
        row["gdb right"] += stop["gdb_right"]
        row["same"] += stop["same"]
        row["tasks"] += stop["others"]
        row["tasks complete"] += stop["others_complete"]
        row["tasks wrong"] += len(stop["others_wrong"])
        if not stop["same"]:
            if stop["right"] and not stop["gdb_right"]:
                who = "ours"
            elif stop["gdb_right"] and not stop["right"]:
                who = "gdb"
            else:
                who = "both" if stop["right"] else "neither"
            row[f"{who} is right"] += 1
            different.append((who, stop))
        if stop["complete"] and not stop["right"] or stop["others_wrong"]:
            row["wrong"] += 1
            wrong.append(stop)

columns = ["stops", "same", "ours is right", "gdb is right", "both is right", "neither is right"]
columns += ["complete", "right", "gdb right", "wrong", "tasks", "tasks complete", "tasks wrong"]
total = collections.Counter()
print("| build | at | " + " | ".join(columns) + " |")
print("|---|---|" + "---:|" * len(columns))
for (build, kind), row in sorted(rows.items()):
    total.update(row)
    print(f"| {build} | {kind} | " + " | ".join(str(row[column]) for column in columns) + " |")
print("| all | | " + " | ".join(str(total[column]) for column in columns) + " |")

grouped = collections.Counter()
for who, stop in different:
    grouped[who, stop["build"], stop["kind"], " < ".join(stop["gdb"][:6]), " < ".join((stop["ours"] or [])[:6]), stop["why"]] += 1
for (who, build, kind, gdbs, ours, why), count in grouped.most_common(SHOWN_MAX):
    print(f"\n{count} x {build} {kind}, right: {who}\n  gdb   {gdbs}\n  ours  {ours}{why or ''}")
for stop in wrong[:SHOWN_MAX]:
    print(f"\ncomplete, but wrong: {stop}")

random_stops = [row for (_, kind), row in rows.items() if kind == "random"]
stops = sum(row["stops"] for row in random_stops)
fine = sum(row["same"] + row["ours is right"] for row in random_stops)
print(f"\n{fine} of {stops} random stops ({100 * fine / max(stops, 1):.2f} %) are the same as gdb's, or right where gdb is not")
print(f"{total['same']} of {total['stops']} stops are the same; {len(wrong)} have a complete stack that is wrong")
sys.exit(1 if wrong or stops == 0 or fine < LEAST * stops else 0)
