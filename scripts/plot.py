#!/usr/bin/env python3
"""Draws runs: one HTML page from the metrics.jsonl of one or more output directories (dev/docs/metrics.md).

    scripts/plot.py DIR...              writes report.html into the first DIR
    scripts/plot.py DIR... -o FILE

Losses of all runs in one chart, where a step's time goes, memory by stage beside the formula, bytes received, scaling.
The page needs no network, and this script nothing but Python 3.7.
"""
import argparse
import html
import json
import math
import os
import sys
from collections import Counter
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#8c564b", "#9e9e9e", "#bcbd22"]
REST = "#dccfb0"
PHASES = ["data", "forward", "backward", "norm", "losses", "update"]
WIDTH, LEFT, RIGHT = 920, 70, 20

Point = Tuple[float, float]


# ---- runs ------------------------------------------------------------------------------------------------------------

class Run:
    """The records of one metrics.jsonl. Steps are dictionaries, as they are in the file."""

    def __init__(self, path: str):
        self.path = os.path.join(path, "metrics.jsonl") if os.path.isdir(path) else path
        self.name = os.path.basename(os.path.dirname(os.path.abspath(self.path)))
        self.color = COLORS[0]
        self.steps: List[dict] = []
        self.values: Dict[str, List[Point]] = {"val": [], "eval": []}
        self.starts: List[dict] = []
        self.report: Optional[dict] = None
        with open(self.path, encoding="utf-8", errors="replace") as f:
            for number, line in enumerate(f, 1):
                try:
                    record = json.loads(line)
                except ValueError:  # the last line of a run that is being written
                    continue
                try:
                    self.add(record)
                except (KeyError, TypeError):
                    raise ValueError(f"{self.path}, line {number}: is not a record of a run") from None
        if not self.starts:
            raise ValueError(f"{self.path}: has no record of a run")
        # The last start that took a step: a run may be resumed where it had ended.
        last = self.steps[-1]["step"] if self.steps else 0
        self.start = next((s for s in reversed(self.starts) if s["step"] < last), self.starts[-1])

    def add(self, record: dict) -> None:
        kind = record["kind"]
        if kind == "step":
            self.steps.append(record)
        elif kind == "run":
            self.starts.append(record)
        elif kind == "report":
            self.report = record
        elif kind in self.values:
            value = record["loss" if kind == "val" else "accuracy"]
            if value is not None:
                self.values[kind].append((record["step"], value))

    def timed(self) -> List[dict]:
        """Steps since that start, without the first, which is slow."""
        mine = [s for s in self.steps if s["step"] > self.start["step"]]
        return mine[1:] or mine

    def mean(self, field: str, part: str = "") -> float:
        values = [s[field][part] if part else s[field] for s in self.timed()]
        values = [v for v in values if v is not None]
        return sum(values) / len(values) if values else math.nan

    def series(self, field: str) -> List[Point]:
        return [(s["step"], s[field]) for s in self.steps if s[field] is not None]

    def stage(self) -> int:
        return self.start["stage"]

    def plan(self, stage: int, table: str) -> Dict[str, dict]:
        """Rows of the plan, {what: {bytes, formula}}; empty if there is none."""
        stages = self.start.get("plan", {}).get("stages", [])
        rows = dict(stages[stage][table]) if stages else {}
        rows.pop("total", None)
        return rows

    def measured_memory(self) -> Dict[str, int]:
        if self.report:
            return {row["what"]: row["max"] for row in self.report["memory"] if row["what"] != "total"}
        return self.steps[-1]["memory"] if self.steps else {}


def load(paths: Sequence[str]) -> List[Run]:
    runs = [Run(p) for p in paths]
    for i, run in enumerate(runs):
        run.color = COLORS[i % len(COLORS)]
        if [r.name for r in runs].count(run.name) > 1:
            run.name = os.path.dirname(run.path)
    return runs


# ---- numbers as text -------------------------------------------------------------------------------------------------

def size(n: float) -> str:
    for unit in ["B", "kB", "MB", "GB"]:
        if abs(n) < 1000:
            return f"{n:.3g} {unit}" if unit != "B" else f"{n:.0f} B"
        n /= 1000
    return f"{n:.3g} TB"


def count(n: float) -> str:
    return "n/a" if n is None or math.isnan(n) else f"{n:,.0f}"


def milliseconds(s: float) -> str:
    return "n/a" if math.isnan(s) else f"{1000 * s:.2f}" if s < 0.1 else f"{1000 * s:.1f}"


def ticks(low: float, high: float, most: int = 6) -> List[float]:
    """Round numbers from low to high."""
    if not high > low:
        return [low]
    step = 10 ** math.floor(math.log10((high - low) / most))
    while (high - low) / step > most:
        step *= 2.5 if f"{step:e}"[0] == "2" else 2
    first = math.ceil(low / step - 1e-9)
    return [step * i for i in range(first, math.floor(high / step + 1e-9) + 1)]


# ---- SVG -------------------------------------------------------------------------------------------------------------

def text(x: float, y: float, s: str, anchor: str = "middle", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {extra}>{html.escape(s)}</text>'


class Series(NamedTuple):
    points: List[Point]
    color: str
    style: str = ""  # attributes of the line
    dots: bool = False
    line: bool = True


def thin(points: List[Point], most: int = 1500) -> List[Point]:
    every = max(1, len(points) // most)
    return points[::every] + ([points[-1]] if points and (len(points) - 1) % every else [])


def smooth(points: List[Point]) -> List[Point]:
    """Means over a fiftieth of the points."""
    width = max(1, len(points) // 50)
    out, total = [], 0.0
    for i, (x, y) in enumerate(points):
        total += y - (points[i - width][1] if i >= width else 0)
        out.append((x, total / min(i + 1, width)))
    return out


def line_chart(series: Sequence[Series], x_title: str, y_title: str, height: int = 300, zero: bool = False,
               x_ticks: Optional[List[float]] = None, log: bool = False) -> str:
    """zero: the y axis begins at 0. log: it is logarithmic."""
    if log:
        series = [s._replace(points=[(x, math.log10(y)) for x, y in s.points if y > 0]) for s in series]
    drawn = [s for s in series if s.points]
    xs = [x for s in drawn for x, _ in s.points]
    ys = sorted(y for s in drawn for _, y in s.points)
    if not xs:
        return "<p>No values.</p>"
    x0, x1 = min(xs), max(xs)
    y0, y1 = (0.0 if zero else ys[0]), ys[-1]
    if x1 == x0:
        x0, x1 = x0 - 1, x1 + 1
    margin = (y1 - y0) * 0.05 or abs(y1) * 0.1 or 1
    y0, y1 = (0.0 if zero else y0 - margin), y1 + margin
    top, bottom = 12, height - 42

    def px(x: float) -> float:
        return LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT)

    def py(y: float) -> float:
        return bottom - (y - y0) / (y1 - y0) * (bottom - top)

    out = [f'<svg viewBox="0 0 {WIDTH} {height}">']
    digits = (1, 2, 5) if y1 - y0 < 3 else (1,)
    logs = [math.log10(d) + e for e in range(math.floor(y0), math.ceil(y1)) for d in digits] if log else []
    for y in [y for y in logs if y0 <= y <= y1] if log else ticks(y0, y1):
        out.append(f'<path class="grid" d="M{LEFT} {py(y):.1f}H{WIDTH - RIGHT}"/>')
        out.append(text(LEFT - 8, py(y) + 4, f"{10 ** y:,.3g}" if log else f"{y:,.10g}", "end"))
    for x in x_ticks or ticks(x0, x1, 10):
        out.append(f'<path class="grid" d="M{px(x):.1f} {bottom}v5"/>' + text(px(x), bottom + 18, f"{x:,.10g}"))
    out.append(f'<path class="axis" d="M{LEFT} {top}V{bottom}H{WIDTH - RIGHT}"/>')
    out.append(text((LEFT + WIDTH - RIGHT) / 2, height - 6, x_title))
    out.append(text(0, 0, y_title, extra=f'transform="translate(14 {(top + bottom) / 2:.0f}) rotate(-90)"'))
    for s in drawn:
        points = thin(s.points)
        if s.line:
            path = "L".join(f"{px(x):.1f} {py(y):.1f}" for x, y in points)
            out.append(f'<path class="line" stroke="{s.color}" {s.style} d="M{path}"/>')
        if s.dots:
            out += [f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="3.5" fill="{s.color}"><title>{x:g}: {y:.6g}</title>'
                    '</circle>' for x, y in points]
    return "".join(out) + "</svg>"


class Part(NamedTuple):
    name: str
    value: float
    color: str
    opacity: float = 1.0


def bars(rows: Sequence[Tuple[str, List[Part]]], unit) -> str:
    """Stacked, horizontal; unit makes a text of a value."""
    left, right, pitch = 250, 90, 30
    longest = max(sum(p.value for p in parts) for _, parts in rows) or 1
    scale = (WIDTH - left - right) / longest
    out = [f'<svg viewBox="0 0 {WIDTH} {pitch * len(rows) + 8}">']
    for i, (label, parts) in enumerate(rows):
        y, x = 4 + i * pitch, float(left)
        out.append(text(left - 10, y + 16, label, "end"))
        for p in parts:
            w = p.value * scale
            out.append(f'<rect x="{x:.2f}" y="{y}" width="{w:.2f}" height="{pitch - 8}" fill="{p.color}" '
                       f'fill-opacity="{p.opacity}"><title>{html.escape(p.name)}: {unit(p.value)}</title></rect>')
            x += w
        out.append(text(x + 6, y + 16, unit(sum(p.value for p in parts)), "start"))
    return "".join(out) + "</svg>"


def legend(entries: Sequence[Tuple[str, str, float]]) -> str:
    """Of (name, color, opacity)."""
    spans = [f'<span><i style="background:{c};opacity:{o}"></i>{html.escape(n)}</span>' for n, c, o in entries]
    return '<p class="legend">' + "".join(spans) + "</p>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """The first `texts` columns are text, the others numbers."""
    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(
            f'<{tag} class="{"text" if i < texts else "number"}">{html.escape(str(c))}</{tag}>'
            for i, c in enumerate(cells)) + "</tr>"
    return '<div class="wide"><table>' + row(head, "th") + "".join(row(r, "td") for r in rows) + "</table></div>"


# ---- the parts of the page -------------------------------------------------------------------------------------------

def summary(runs: List[Run]) -> str:
    rows = []
    for r in runs:
        s = r.start
        last = r.steps[-1] if r.steps else None
        val = r.values["val"][-1][1] if r.values["val"] else None
        rows.append([r.name, s["model"], s["precision"], s["stage"], s["ranks"], f'{s["G"]} x {s["B"]} x {s["T"]}',
                     f'{last["step"] if last else 0} of {s["steps"]}',
                     f'{last["loss"]:.4f}' if last and last["loss"] is not None else "n/a",
                     f"{val:.4f}" if val is not None else "n/a", milliseconds(r.mean("step_seconds")),
                     count(s["tokens_per_step"] / r.mean("step_seconds"))])
    return table(["run", "model", "precision", "stage", "ranks", "G x B x T", "steps", "loss", "val loss", "ms a step",
                  "tokens/s"], rows, 3)


def losses(runs: List[Run]) -> str:
    series = [Series(r.series("loss"), r.color, 'stroke-opacity="0.22"') for r in runs]
    series += [Series(smooth(r.series("loss")), r.color, 'stroke-width="2"') for r in runs]
    series += [Series(r.values["val"], r.color, dots=True, line=False) for r in runs]
    equal: Dict[str, List[str]] = {}  # names of the runs with these losses
    for r in runs:
        equal.setdefault(json.dumps(r.series("loss")), []).append(r.name)
    out = legend([(r.name, r.color, 1) for r in runs] +
                 [(f'{", ".join(names[:-1])} and {names[-1]} are equal', "none", 1)
                  for losses_of, names in equal.items() if len(names) > 1 and losses_of != "[]"])
    out += line_chart(series, "steps", "loss", 380)
    out += ("<p>Pale: each step. Solid: mean of the last fiftieth of the steps. Dots: validation.</p>")
    for field, title in [("norm", "gradient norm, log"), ("lr", "learning rate")]:
        out += line_chart([Series(r.series(field), r.color) for r in runs], "steps", title, 200, zero=field == "lr",
                          log=field == "norm")
    if any(r.values["eval"] for r in runs):
        out += line_chart([Series(r.values["eval"], r.color, "", True) for r in runs], "steps", "HellaSwag", 200)
    return out


def times(runs: List[Run]) -> str:
    runs = [r for r in runs if r.timed() and r.mean("step_seconds") > 0]
    if not runs:
        return "<p>No steps.</p>"
    stacks, rows = [], []
    for r in runs:
        parts, used = [], 0.0
        for i, phase in enumerate(PHASES):
            whole, waiting = r.mean("seconds", phase), r.mean("waiting", phase)
            if math.isnan(whole):
                continue
            waiting = min(waiting, whole)
            parts += [Part(phase, whole - waiting, COLORS[i]),
                      Part(f"{phase}: waiting for other ranks", waiting, COLORS[i], 0.35)]
            used += whole
        parts.append(Part("rest", max(0.0, r.mean("step_seconds") - used), REST))
        stacks.append((r.name, parts))
    for phase in PHASES + ["rest", "the step"]:
        cells = [phase]
        for (_, parts), r in zip(stacks, runs):
            step = r.mean("step_seconds")
            mine = [p for p in parts if p.name.split(":")[0] == phase] if phase != "the step" else parts
            seconds, waits = sum(p.value for p in mine), sum(p.value for p in mine if p.opacity < 1)
            cells += [f"{milliseconds(seconds)} ({milliseconds(waits)})", f"{100 * seconds / step:.1f}%"]
        rows.append(cells)
    head = ["phase"] + [c for r in runs for c in (f"{r.name}: ms (waiting)", "of the step")]
    out = legend([(p, COLORS[i], 1) for i, p in enumerate(PHASES)] +
                 [("rest", REST, 1), ("pale: waiting for other ranks", "#666666", 0.35)])
    out += bars(stacks, lambda s: f"{milliseconds(s)} ms") + table(head, rows)
    out += ("<p>Means on rank 0 over the steps since the last start, without the first. Phases follow each other, so "
            "with the rest, which is the host's, they add up to the step. With NCCL the stream waits, not the host: "
            "such waits are not told apart.</p>")
    rows = []
    for r in runs:
        slow, mean = r.mean("slowest_computing"), r.mean("mean_computing")
        ranks = Counter(s["slowest_rank"] for s in r.timed())
        rank, often = ranks.most_common(1)[0]
        slower = f"{100 * (slow / mean - 1):.1f}%" if mean else "n/a"
        rows.append([r.name, milliseconds(mean), milliseconds(slow), slower,
                     f"{rank}, in {100 * often / len(r.timed()):.0f}% of the steps"])
    out += "<h3>The slowest rank</h3>" + table(
        ["run", "computing, mean over ranks, ms", "slowest rank, ms", "slower than the mean", "most often rank"], rows)
    return out + line_chart([Series([(s["step"], 1000 * s["step_seconds"]) for s in r.timed()], r.color) for r in runs],
                            "steps", "ms a step", 200, zero=True)


def memory(runs: List[Run]) -> str:
    groups: Dict[Tuple[str, str], List[Run]] = {}  # the same formulas: the first one's are drawn
    for r in runs:
        s = r.start
        key = f'{s["model"]}, {s["precision"]}, {s["ranks"]} ranks, B x T = {s["B"]} x {s["T"]}, G = {s["G"]}'
        plans = json.dumps([r.plan(stage, "memory") for stage in range(4)])
        groups.setdefault((key.replace(" 1 ranks", " 1 rank"), plans), []).append(r)
    out = ""
    known = list(dict.fromkeys(n for r in runs for n in r.plan(0, "memory") or r.measured_memory()))
    color = {n: COLORS[i % len(COLORS)] for i, n in enumerate(known)}
    for (key, _), mine in groups.items():
        names = [n for n in known if any(r.measured_memory().get(n) for r in mine) or
                 any(mine[0].plan(stage, "memory").get(n, {}).get("bytes") for stage in range(4))]
        stacks = []
        for stage in range(4):
            plan = mine[0].plan(stage, "memory")
            if plan:
                stacks.append((f"stage {stage}, by formula",
                               [Part(n, plan[n]["bytes"], color[n], 0.5) for n in names if n in plan]))
            for r in mine:
                if r.stage() == stage:
                    got = r.measured_memory()
                    stacks.append((f"{r.name} (stage {stage}), measured",
                                   [Part(n, got.get(n, 0), color[n]) for n in names]))
        out += f"<h3>{html.escape(key)}</h3>" + legend(
            [(n, color[n], 1) for n in names] + [("pale: by formula", "#666666", 0.5)]) + bars(stacks, size)
    return (out + "".join(report_table(r, "memory") for r in runs) +
            "<p>By formula: on rank 0. Equal: on each rank, what is measured is what its formula says.</p>")


def report_table(r: Run, which: str) -> str:
    if r.report and which in r.report:
        rows = [[x["what"], x["formula"], count(x["by_formula"]), count(x["min"]), count(x["max"]),
                 "yes" if x["equal"] else "no"] for x in r.report[which]]
        head = ["bytes", "formula", "by formula", "measured, min", "max over ranks", "equal"]
    else:  # the run has not ended
        got = r.measured_memory() if which == "memory" else (r.steps[-1]["received"] or {}) if r.steps else {}
        plan = r.plan(r.stage(), which)
        rows = [[n, plan.get(n, {}).get("formula", ""), count(plan[n]["bytes"]) if n in plan else "n/a", count(b)]
                for n, b in got.items()]
        head = ["bytes", "formula", "by formula", "measured, rank 0"]
    title = "memory of a rank" if which == "memory" else "received by a rank in a step"
    return f"<h3>{html.escape(r.name)}, stage {r.stage()}: {title}</h3>" + table(head, rows, 2)


def scaling(runs: List[Run]) -> str:
    points = sorted(((r.start["ranks"], r.start["tokens_per_step"] / r.mean("step_seconds"), r) for r in runs
                     if r.timed() and r.mean("step_seconds") > 0), key=lambda p: p[:2])
    ranks = sorted({n for n, _, _ in points})
    if len(ranks) < 2:
        return (f"<p>Runs on several numbers of ranks are drawn here, in tokens/s. These are all on {ranks[0]}.</p>"
                if ranks else "<p>No steps.</p>")
    n0, speed0, _ = points[0]
    ideal = Series([(n, speed0 * n / n0) for n in ranks], "#999999", 'stroke-dasharray="5 4"')
    stages = sorted({r.stage() for _, _, r in points})
    series = [Series([(n, v) for n, v, r in points if r.stage() == stage], COLORS[stage], "", True) for stage in stages]
    rows = [[r.name, r.stage(), n, count(v), count(v / n), f"{100 * v / speed0 * n0 / n:.1f}%"] for n, v, r in points]
    return (legend([(f"stage {s}", COLORS[s], 1) for s in stages] + [(f"{n0} ranks x N / {n0}", "#999999", 1)]) +
            line_chart([ideal] + series, "ranks N", "tokens/s", 300, True, [float(n) for n in ranks]) +
            table(["run", "stage", "ranks", "tokens/s", "for each rank", "efficiency"], rows) +
            f"<p>Efficiency: tokens/s of a rank, beside those of {points[0][2].name}.</p>")


STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 980px; margin: 24px auto; padding: 0 16px }
h1 { font-size: 24px } h2 { font-size: 19px; margin-top: 36px; border-bottom: 1px solid #ddd; padding-bottom: 4px }
h3 { font-size: 15px; margin: 22px 0 6px }
svg { width: 100%; display: block; margin: 6px 0 } svg text { font-size: 12px; fill: #444 }
.grid { stroke: #e4e4e4; fill: none } .axis { stroke: #888; fill: none } .line { fill: none; stroke-width: 1.3 }
.wide { overflow-x: auto } table { border-collapse: collapse; margin: 8px 0; font-size: 13px }
th { border-bottom: 1px solid #999; font-weight: 600; vertical-align: bottom } td { border-bottom: 1px solid #eee }
th, td { padding: 3px 10px 3px 0; white-space: nowrap } .text { text-align: left } .number { text-align: right }
td.number { font-variant-numeric: tabular-nums }
.legend span { margin-right: 16px; white-space: nowrap } p { font-size: 13px; color: #555 }
.legend i { display: inline-block; width: 12px; height: 12px; margin-right: 5px; vertical-align: -1px }
"""


def page(runs: List[Run]) -> str:
    sections = [("Runs", summary(runs)), ("Loss", losses(runs)), ("Where a step's time goes", times(runs)),
                ("Memory", memory(runs)), ("Received bytes", "".join(report_table(r, "wire") for r in runs)),
                ("Scaling", scaling(runs))]
    body = "".join(f"<h2>{html.escape(title)}</h2>\n{content}\n" for title, content in sections)
    title = html.escape(", ".join(r.name for r in runs))
    return (f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f"<style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n{body}</body></html>\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("directories", metavar="DIR", nargs="+", help="output directory of a run (-o), or its "
                        "metrics.jsonl")
    parser.add_argument("-o", metavar="FILE", dest="output", help="default: report.html in the first DIR")
    arguments = parser.parse_args()
    output = None
    try:
        runs = load(arguments.directories)
        output = arguments.output or os.path.join(os.path.dirname(runs[0].path), "report.html")
        with open(output, "w", encoding="utf-8") as f:
            f.write(page(runs))
    except OSError as e:
        said = f"{output}: cannot be written" if output else f"{e.filename}: cannot be read"
        remedy = "choose another file with -o" if output else "give the output directory of a run (its -o)"
        print(f"error: {said}: {e.strerror}: {remedy}", file=sys.stderr)
        return 1
    except ValueError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    print(f"report: {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
