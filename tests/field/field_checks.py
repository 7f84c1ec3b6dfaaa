# SPDX-License-Identifier: Apache-2.0
"""What every trace must keep, and views of what a run left."""

import json


def crossings(trace):
    """Pairs of slices of one row (pid, tid) that neither nest nor are disjoint, at ns resolution."""
    rows = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            begin = round(event["ts"] * 1000)
            row = rows.setdefault((event["pid"], event["tid"]), [])
            row.append((begin, -(begin + round(event["dur"] * 1000)), event["name"]))
    found = []
    for row, slices in rows.items():
        open_slices = []
        for begin, end, name in sorted(slices):  # of one begin the longer first: it is the parent
            while open_slices and -open_slices[-1][1] <= begin:
                open_slices.pop()
            if open_slices and -end > -open_slices[-1][1]:
                found.append((row, open_slices[-1], (begin, end, name)))
            open_slices.append((begin, end, name))
    return found


def refuse_constant(name):
    raise ValueError(f"{name} is no JSON")


def parse_strictly(data):
    """JSON by the letter: UTF-8, no NaN, no control characters in strings, no lone surrogates."""
    value = json.loads(data.decode("utf-8"), strict=True, parse_constant=refuse_constant)
    json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def calls_of(process):
    return {row["name"]: row["count"] for row in process["calls_by_name"]}


def rows_of(trace, *categories):
    return [e for e in trace["traceEvents"] if e.get("cat") in categories]
