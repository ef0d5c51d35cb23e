#!/usr/bin/env python3
"""Checks what test_metrics.sh has made. Prints what is wrong, and exits non-zero then.

    check_metrics.py metrics DIR LAST STARTS    DIR/metrics.jsonl of a run of LAST steps that was started STARTS times
    check_metrics.py report FILE NAME...        the page of runs of these names
"""
import json
import re
import sys
import xml.etree.ElementTree

PHASES = ["data", "forward", "backward", "norm", "losses", "update"]
STEP = {"kind", "step", "time", "loss", "loss_z", "norm", "norm_z", "lr", "skipped", "step_seconds",
        "tokens_per_second", "mfu", "seconds", "waiting", "slowest_rank", "slowest_computing", "mean_computing",
        "received", "memory"}
RUN = {"kind", "step", "version", "time", "model", "device", "precision", "transport", "stage", "ranks", "ranks_here",
       "shard_group", "parameters", "parameters_padded", "B", "T", "G", "micro_batches", "tokens_per_step", "steps",
       "plan"}


def refuse(name):
    raise ValueError(f"{name} is not JSON")


def check_step(s, run):
    assert set(s) == STEP, set(s) ^ STEP
    assert list(s["seconds"]) == PHASES and list(s["waiting"]) == PHASES, s
    assert all(x >= 0 for x in s["seconds"].values()), s
    assert 0 < sum(s["seconds"].values()) <= s["step_seconds"] + 1e-5, s
    assert all(0 <= s["waiting"][p] <= s["seconds"][p] + 1e-4 for p in PHASES), s
    assert min(s["seconds"]["forward"], s["seconds"]["backward"], s["seconds"]["update"]) > 0, s
    assert 0 <= s["slowest_rank"] < run["ranks"] and s["slowest_computing"] >= s["mean_computing"] > 0, s
    assert abs(s["tokens_per_second"] * s["step_seconds"] / run["tokens_per_step"] - 1) < 1e-6, s
    assert s["loss_z"] is None and s["norm_z"] is None and s["mfu"] is None and s["skipped"] is False, s


def check_bytes(s, report):
    wire = {x["what"]: x["by_formula"] for x in report["wire"]}
    assert s["received"] == wire and sum(wire.values()) > 0, (s["received"], wire)
    memory = {x["what"]: x for x in report["memory"] if x["max"] > 0}
    for what, got in s["memory"].items():
        assert memory[what]["min"] <= got <= memory[what]["max"], (what, got, memory[what])


def check_metrics(directory, last, starts):
    with open(f"{directory}/metrics.jsonl", encoding="utf-8") as f:
        records = [json.loads(line, parse_constant=refuse) for line in f]
    of = {kind: [r for r in records if r["kind"] == kind] for kind in ("run", "step", "val", "report")}
    assert sum(map(len, of.values())) == len(records)
    assert [r["step"] for r in records] == sorted(r["step"] for r in records)
    assert [s["step"] for s in of["step"]] == list(range(1, last + 1)), of["step"]
    assert len(of["run"]) == starts and all(set(r) == RUN for r in of["run"])
    report, = of["report"]
    run = of["run"][-1]
    assert report["step"] == last
    for s in of["step"]:
        check_step(s, next(r for r in reversed(of["run"]) if r["step"] < s["step"]))
        if s["step"] > run["step"]:
            check_bytes(s, report)
    plan = {k: v["bytes"] for k, v in run["plan"]["stages"][run["stage"]]["wire"].items() if k != "total"}
    assert plan == {x["what"]: x["by_formula"] for x in report["wire"]}, plan
    for row in report["memory"] + report["wire"]:
        assert row["equal"] is True, row
        assert row["what"] in ("transport", "total") or row["by_formula"] == row["min"] == row["max"], row
    with open(f"{directory}/main.log", encoding="utf-8") as f:
        log = f.read()
    lines = {f's:{s["step"] - 1} trl:{s["loss"]:.4f} lr:{s["lr"]:.6f} norm:{s["norm"]:.2f}' for s in of["step"]}
    lines |= {f's:{v["step"]} tel:{v["loss"]:.4f}' for v in of["val"]}
    assert lines == set(log.splitlines()), lines ^ set(log.splitlines())


def check_report(path, names):
    with open(path, encoding="utf-8") as f:
        page = f.read()
    for title in ["Runs", "Loss", "Where a step's time goes", "Memory", "Received bytes", "Scaling"] + names:
        assert title.replace("'", "&#x27;") in page, title
    assert not re.search(r"https?:|src=|<link|<script|\bnan\b", page)  # it needs nothing else
    drawings = re.findall(r"<svg.*?</svg>", page, re.S)
    assert len(drawings) >= 6, len(drawings)
    for drawing in drawings:
        xml.etree.ElementTree.fromstring(drawing)
    assert page.count('stroke-width="2"') == len(names)  # a loss of each run
    assert page.count("floor(log2(G + 1))") >= len(names)  # formulas, beside their numbers
    assert page.count("<table") == page.count("</table>") and page.rstrip().endswith("</html>")


if __name__ == "__main__":
    if sys.argv[1] == "metrics":
        check_metrics(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        check_report(sys.argv[2], sys.argv[3:])
