"""Asks a Prometheus server every query of the dashboard, as Grafana would, and draws the answers. What has none, or an answer that
Grafana could not put a name to, is a failure.

dashboard.py PROMETHEUS BEGIN END PAGE [PICTURE]: of $NAMESPACE and $PIPELINE, from and to seconds since 1970; the picture needs Chromium
"""

import html
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

prometheus, begin, end, page = sys.argv[1:5]
begin, end = int(begin), int(end)
CHOSEN = {name: os.environ[name.upper()] for name in ("namespace", "pipeline")}
# What is scraped every 5 seconds: Grafana's span of rates is four times that.
STEP, RATE = 5, "20s"
# Panels that may have no answer, and why. A query of theirs that has one is drawn all the same.
MAY_BE_EMPTY = {
    "Conditions that are not as they should be": "nothing is wrong",
}
ROOT = pathlib.Path(__file__).resolve().parents[2]
dashboard = json.loads((ROOT / "charts/feedmill/dashboards/feedmill.json").read_text(encoding="utf-8"))
faults = []


def ask(path, **arguments):
    try:
        with urllib.request.urlopen(f"{prometheus}/api/v1/{path}?{urllib.parse.urlencode(arguments)}", timeout=30) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        sys.exit(f"{arguments}: {error.read().decode()}")


def filled(text):
    for name, value in {"__rate_interval": RATE, **CHOSEN}.items():
        text = text.replace("$" + name, value)
    return text


def answers(panel):
    """Series of all queries of a panel: a name and points each."""
    series = {}
    for target in panel["targets"]:
        where = f"{panel['title']}: {target['legendFormat']}"
        found = 0
        for one in ask("query_range", query=filled(target["expr"]), start=begin, end=end, step=STEP)["result"]:
            points = [(at, float(value)) for at, value in one["values"] if math.isfinite(float(value))]
            labels = {label: one["metric"].get(label, "") for label in re.findall(r"{{(\w+)}}", target["legendFormat"])}
            name = re.sub(r"{{(\w+)}}", lambda label: labels[label[1]], target["legendFormat"])
            faults.extend(f"{where}: a series without {label}" for label, value in labels.items() if not value)
            if name in series:
                faults.append(f"{where}: two series are called {name}")
            if points:
                series[name] = points
                found += 1
        if not found and panel["title"] not in MAY_BE_EMPTY:
            faults.append(f"{where}: no data")
    return series


def scale(unit, top):
    """How a unit of Grafana's is written: a factor, and what stands behind the number."""
    if unit == "s" and top < 1:
        return 1000, " ms"
    if unit in ("percentunit", "percent", "s"):
        return (100 if unit == "percentunit" else 1), {"s": " s"}.get(unit, " %")
    base, prefixes, behind = {
        "bytes": (1024, ["", "Ki", "Mi", "Gi"], "B"),
        "Bps": (1000, ["", "k", "M", "G"], "B/s"),
        "cps": (1000, ["", "k", "M", "G"], "/s"),
        "cpm": (1000, ["", "k", "M", "G"], "/min"),
        "short": (1000, ["", "k", "M", "G"], ""),
    }[unit]
    power = min(int(math.log(top, base)), 3) if top >= base else 0
    return base**-power, (" " + prefixes[power] + behind).rstrip()


COLOURS = ["#2f7d32", "#d18b00", "#1f6fc4", "#c2410c", "#7b3fb5", "#00838f", "#d6458b", "#6b7280", "#9a6b3f", "#94a817", "#b3261e"]


def plot(panel, series, width, height):
    """Lines over time, or bars that stand on each other; from 0."""
    defaults = panel["fieldConfig"]["defaults"]
    bars = defaults["custom"]["drawStyle"] == "bars"
    sums = {}
    for at, value in (point for points in series.values() for point in points):
        sums[at] = sums.get(at, 0) + value if bars else max(sums.get(at, 0), value)
    factor, unit = scale(defaults["unit"], max(sums.values(), default=0))
    top = (defaults.get("max") or max(sums.values(), default=0)) * factor
    tick = 10 ** math.floor(math.log10(top)) if top else 1
    tick = next(tick * part for part in (0.2, 0.5, 1, 2, 5) if top <= tick * part * 5) if top else 1
    top = math.ceil(top / tick - 1e-9) * tick or 1
    left, right, bottom = 58, width - 10, height - 18

    def x(at):
        return left + (at - begin) / (end - begin) * (right - left)

    def y(value):
        return bottom - value * factor / top * (bottom - 6)

    out = [f'<svg width="{width}" height="{height}">']
    for number in range(round(top / tick) + 1):
        at = bottom - number * tick / top * (bottom - 6)
        out.append(f'<path class="grid" d="M{left} {at:.1f}H{right}"/><text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{number * tick:g}{unit}</text>')
    every = 60 * math.ceil((end - begin) / 480)
    for at in range(-(-begin // every) * every, end, every):
        clock = time.strftime("%H:%M", time.gmtime(at))
        out.append(f'<path class="grid" d="M{x(at):.1f} 6V{bottom}"/><text x="{x(at):.1f}" y="{height - 4}" text-anchor="middle">{clock}</text>')
    below = {}
    for number, points in enumerate(series.values()):
        path, before = "", None
        for at, value in points:
            if bars:
                path += f"M{x(at):.1f} {y(below.get(at, 0)):.1f}V{y(below.get(at, 0) + value):.1f}"
                below[at] = below.get(at, 0) + value
            else:
                # What is missing stays missing. A point alone is a dot.
                path += f"{'L' if before and at - before <= STEP else 'M'}{x(at):.1f} {y(value):.1f}h0"
            before = at
        wide = f' style="stroke-width:{x(STEP) - x(0) - 0.7:.1f};stroke-linecap:butt"' if bars else ""
        out.append(f'<path class="line" stroke="{COLOURS[number % len(COLOURS)]}"{wide} d="{path}"/>')
    if not series:
        out.append(f'<text class="none" x="{width / 2}" y="{height / 2}" text-anchor="middle">No data: {MAY_BE_EMPTY.get(panel["title"], "?")}</text>')
    return "".join(out) + "</svg>"


def drawn(panel):
    """A panel at its place."""
    place = panel["gridPos"]
    left, top, width, height = (place[key] * size for key, size in (("x", 52), ("y", 26), ("w", 52), ("h", 26)))
    box = f"left:{left + 4}px;top:{top + 60}px;width:{width - 8}px;height:{height - 8}px"
    title = html.escape(panel["title"])
    if panel["type"] == "row":
        return f'<h2 style="{box}">{title}</h2>'
    if panel["type"] != "timeseries":
        sys.exit(f"{panel['title']}: nothing here draws a panel of type {panel['type']}")
    series = answers(panel)
    counts.append(len(series))
    legend, lines, used = "", 1, 0
    for number, name in enumerate(series):
        legend += f'<span><i style="background:{COLOURS[number % len(COLOURS)]}"></i>{html.escape(name)}</span>'
        # As wide as it is at most; what is more than four lines is not seen.
        wide = 6.6 * len(name) + 29
        lines, used = (lines, used + wide) if used + wide < width - 28 else (min(lines + 1, 4), wide)
    return f'<section style="{box}"><h3>{title}</h3>{plot(panel, series, width - 8, height - 36 - 15 * lines)}<div style="height:{15 * lines}px">{legend}</div></section>'


STYLE = """body{margin:0;background:#f4f5f7;font:11px/15px "DejaVu Sans",sans-serif;color:#1f2430}h1{font-size:18px;margin:16px 12px 2px}p{margin:0 12px}
h2,section{position:absolute;margin:0}h2{font-size:13px;padding-top:4px;margin-left:6px}section{background:#fff;border:1px solid #d9dce1;box-sizing:border-box}
h3{font-size:12px;margin:5px 10px 0}div{padding:0 10px;overflow:hidden}span{white-space:nowrap;margin-right:12px}
i{display:inline-block;width:12px;height:3px;margin:0 5px 3px 0}svg{display:block}text{font-size:10px;fill:#5a6270}.none{font-size:12px}
.grid{stroke:#e7e9ed}.line{fill:none;stroke-width:1.5;stroke-linecap:round;stroke-linejoin:round}"""

for variable in dashboard["templating"]["list"]:
    if variable["type"] == "query":
        asked, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
        values = ask(f"label/{label}/values", **{"match[]": filled(asked), "start": begin, "end": end})
        if CHOSEN[variable["name"]] not in values:
            faults.append(f"{variable['name']}: {CHOSEN[variable['name']]} cannot be chosen, only {values}")
counts = []
panels = [drawn(panel) for panel in dashboard["panels"]]
for group in ask("rules")["groups"]:
    faults += [f"alert {rule['name']}: {rule['health']}, {rule.get('lastError')}" for rule in group["rules"] if rule["health"] != "ok"]
titles = {panel["title"] for panel in dashboard["panels"]}
faults += [f"there is no panel {title!r} to be empty" for title in MAY_BE_EMPTY if title not in titles]
span = " to ".join(time.strftime("%H:%M", time.gmtime(at)) for at in (begin, end))
size = (24 * 52, 66 + 26 * max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"]))
with open(page, "w", encoding="utf-8") as file:
    file.write(f'<!doctype html><meta charset="utf-8"><title>Feedmill</title><style>{STYLE}</style><h1>{dashboard["title"]}</h1>')
    file.write(f"<p>{CHOSEN['namespace']}/{CHOSEN['pipeline']}, {span} UTC. The queries of charts/feedmill/dashboards/feedmill.json over a real run, drawn by tests/cluster/dashboard.py and not by Grafana.</p>")
    file.write("".join(panels))
print(f"{len(counts)} panels with {sum(counts)} series; empty: {counts.count(0)}")
if faults:
    sys.exit("\n".join(faults))
if len(sys.argv) > 5:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    browser = os.environ.get("FEEDMILL_BROWSER") or next(filter(None, map(shutil.which, names)), None) or sys.exit("there is no Chromium; FEEDMILL_BROWSER names it")
    with tempfile.TemporaryDirectory() as home:
        arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-color-profile=srgb", f"--user-data-dir={home}/profile"]
        arguments += [f"--window-size={size[0]},{size[1]}", f"--screenshot={sys.argv[5]}", f"file://{os.path.abspath(page)}"]
        subprocess.run([browser, *arguments], env={**os.environ, "HOME": home}, stderr=subprocess.DEVNULL, check=True)
    print(f"{sys.argv[5]}: {os.path.getsize(sys.argv[5])} bytes")
