// Curves over steps: drawn when they come into view, and again when theme, axis, smoothing or data change.

const view = { x: "step", smooth: null };
const X_AXES = {
  step: { words: "step", title: "step", of: (curves) => curves.steps },
  hours: { words: "hours of steps", title: "hours of steps, cumulative", of: (curves) => cumulated(curves, "time/step_s", 3600) },
  device: { words: "device hours", title: "device hours", of: (curves) => curves.values["total/device_hours"] },
  tokens: { words: "tokens generated", title: "tokens generated", of: (curves) => curves.values["total/tokens_generated"] },
};
const DASHES = ["solid", "dash", "dot", "dashdot"];
const CONFIG = {
  displaylogo: false, responsive: true, displayModeBar: "hover", modeBarButtons: [["toImage", "resetScale2d"]],
};

/** The running sum of a metric, where it is there. */
function cumulated(curves, metric, divisor) {
  const values = curves.values[metric];
  if (!values) return undefined;
  let sum = 0;
  return values.map((value) => (sum += (value || 0) * curves.width) / divisor);
}

/** The places of a curve on the x axis of the moment; steps where the axis has no values in this run. */
function xOf(curves) {
  return X_AXES[view.x].of(curves) || curves.steps;
}

/** The window of smoothing in points: the reader's, or one that suits the number of points. */
function smoothing(points) {
  if (view.smooth !== null) return view.smooth;
  return points < 80 ? 1 : 2 * Math.round(points / 100) + 1;
}

/** The mean over a window centred on each point, of the values that are there. */
function smoothed(values, width) {
  const half = (width - 1) / 2;
  return values.map((value, place) => {
    if (value === null) return null;
    const near = values.slice(Math.max(0, place - half), place + half + 1).filter((one) => one !== null);
    return near.reduce((sum, one) => sum + one, 0) / near.length;
  });
}

const plots = [];
const watcher = new IntersectionObserver(
  (entries) => entries.forEach((entry) => {
    const plot = plots.find((one) => one.place === entry.target);
    if (!plot) return;
    plot.visible = entry.isIntersecting;
    if (plot.visible && plot.stale) drawPlot(plot);
  }),
  { rootMargin: "500px 0px" },
);

/** Registers a place for a picture. draw() gives [traces, layout]. */
function plotted(place, draw) {
  const plot = { place, draw, stale: true, visible: false };
  plots.push(plot);
  watcher.observe(place);
  return plot;
}

function drawPlot(plot) {
  plot.stale = false;
  const [traces, layout] = plot.draw();
  Plotly.react(plot.place, traces, layout, CONFIG);
}

/** Draws what can be seen, and the rest when it comes into view; all: at once, for printing. */
function redraw(all = false) {
  for (const plot of plots) {
    plot.stale = true;
    if (plot.visible || all) drawPlot(plot);
  }
}

/** Forgets all pictures, before the page is built anew. */
function forgetPlots() {
  for (const plot of plots.splice(0)) {
    watcher.unobserve(plot.place);
    Plotly.purge(plot.place);
  }
}

/** Axis settings that all pictures share. */
function axis(title, more) {
  return {
    title: { text: title, font: { size: 11.5, color: colour("quiet") }, standoff: 8 },
    gridcolor: colour("grid"), linecolor: colour("rule"), zerolinecolor: colour("rule"), zerolinewidth: 1,
    tickfont: { size: 11, color: colour("quiet") }, nticks: 6, ...more,
  };
}

/** The x axis of the moment, with a thin line where one points. */
function stepAxis(more) {
  const name = view.x === "step" ? "step %{x}" : `%{x:.4~g} ${X_AXES[view.x].words}`;
  return axis(X_AXES[view.x].title, { showspikes: true, spikemode: "across", spikethickness: 1, spikedash: "solid", spikecolor: colour("faint"),
    unifiedhovertitle: { text: name }, ...more });
}

/** The y axis of a unit. */
function unitAxis(unit, more) {
  if (unit === "share") return axis("share", { tickformat: ".3~p", ...more });
  return axis(unit, { tickformat: unit === "rate" ? ".2~e" : ",.6~g", ...more });
}

/** The layout that all pictures share. */
function layout(more) {
  return {
    margin: { l: 66, r: 14, t: 10, b: 40 }, paper_bgcolor: colour("paper"), plot_bgcolor: colour("paper"),
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("ink") }, showlegend: false,
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("faint"), activecolor: colour("ink") },
    hovermode: "x unified", hoverlabel: { bgcolor: colour("paper"), bordercolor: colour("rule"), font: { size: 12, color: colour("ink") } },
    ...more,
  };
}

/** How values of a unit are written where one points. */
function hover(unit) {
  return unit === "share" ? "%{y:.2%}" : "%{y:.4~g}";
}

/** The filled area between two lines. */
function areaBetween(x, low, high, hex, opacity) {
  const there = x.map((_, i) => i).filter((i) => low[i] !== null && high[i] !== null && low[i] !== undefined);
  const closed = [...there, ...[...there].reverse()];
  const y = [...there.map((i) => high[i]), ...[...there].reverse().map((i) => low[i])];
  return { x: closed.map((i) => x[i]), y, fill: "toself", fillcolor: faded(hex, opacity), line: { width: 0 }, mode: "lines",
    type: "scatter", hoverinfo: "skip", showlegend: false };
}

/** A curve: its band, the raw values faintly where they are smoothed, and the line. */
function curveTraces(curves, metric, style, unit) {
  const values = curves.values[metric];
  if (!values) return [];
  const x = xOf(curves), width = smoothing(values.length), traces = [];
  const spread = curves.low[metric] && curves.low[metric].some((value) => value !== null);
  if (spread && !style.plain) traces.push(areaBetween(x, curves.low[metric], curves.high[metric], style.hex, 0.14));
  const few = values.filter((value) => value !== null).length < 40;
  if (width > 1 && !spread) {
    traces.push({ x, y: values, type: "scatter", mode: "lines", line: { color: faded(style.hex, 0.25), width: 1 }, hoverinfo: "skip" });
  }
  traces.push({
    x, y: width > 1 ? smoothed(values, width) : values, name: label(style.name), type: "scatter",
    mode: few ? "lines+markers" : "lines", line: { color: style.hex, width: 1.8, dash: style.dash }, marker: { size: 4.5 },
    hovertemplate: hover(unit), connectgaps: true,
  });
  return traces;
}

/** The traces of a panel: by role with one group, by run and dash with several. */
function panelTraces(panel, hidden) {
  const all = groups(), traces = [];
  for (const group of all) {
    if (panel.band && all.length === 1) {
      const [low, high] = panel.band.map((metric) => group.curves.values[metric]);
      traces.push(areaBetween(xOf(group.curves), low, high, colour("c-plain"), 0.1));
    }
    panel.curves.forEach(([metric, words, role], place) => {
      if (hidden.has(metric)) return;
      const hex = colour(all.length === 1 ? `c-${role}` : group.colour);
      const name = all.length === 1 ? words : `${group.label}: ${words}`;
      traces.push(...curveTraces(group.curves, metric, { hex, name, dash: all.length === 1 ? "solid" : DASHES[place % 4] }, panel.unit));
    });
  }
  return traces;
}

/** Areas one upon the other, of the run that is shown. */
function stackedTraces(panel, hidden) {
  const curves = DATA.runs[shownRun].curves;
  return panel.curves.filter(([metric]) => curves.values[metric] && !hidden.has(metric)).map(([metric, words, role]) => ({
    x: xOf(curves), y: curves.values[metric].map((value) => value || 0), name: label(words), type: "scatter", mode: "lines",
    stackgroup: "one", line: { width: 0.5, color: colour(`c-${role}`) }, fillcolor: faded(colour(`c-${role}`), 0.55),
    hovertemplate: hover(panel.unit),
  }));
}

/** A short piece of a line, as it is drawn. */
function lineSample(hex, dash) {
  const pattern = { solid: "", dash: "5 3", dot: "2 2", dashdot: "6 2 2 2" }[dash];
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  Object.entries({ width: 18, height: 8 }).forEach(([name, value]) => svg.setAttribute(name, value));
  Object.entries({ x1: 0, x2: 18, y1: 4, y2: 4, "stroke-width": 2.4, "stroke-dasharray": pattern }).forEach(([n, v]) => line.setAttribute(n, v));
  line.style.stroke = `var(--${hex})`;
  svg.setAttribute("aria-hidden", "true");
  svg.append(line);
  return svg;
}

/** The legend of a panel; a press on an entry hides its curves. */
function legend(panel, hidden, changed) {
  const several = groups().length > 1 && !panel.stacked;
  const entries = panel.curves.map(([metric, words, role], place) => {
    const made = el("button", { type: "button", "aria-pressed": "true", title: metric },
      lineSample(several ? "quiet" : `c-${role}`, several ? DASHES[place % 4] : "solid"), words);
    made.addEventListener("click", () => {
      if (!hidden.delete(metric)) hidden.add(metric);
      made.setAttribute("aria-pressed", String(!hidden.has(metric)));
      changed();
    });
    return made;
  });
  return el("div", { class: "legend" }, entries);
}

/** A range around curves that are all one value, which would otherwise be drawn from -1 to 1 or from 0 to twice it. */
function flatRange(panel) {
  if (panel.stacked) return {};
  const values = groups().flatMap((group) => panel.curves.flatMap(([metric]) => group.curves.values[metric] || [])).filter((value) => value !== null);
  const least = values.reduce((a, b) => Math.min(a, b), Infinity), most = values.reduce((a, b) => Math.max(a, b), -Infinity);
  if (least !== most) return {};
  return { range: least === 0 ? [-0.1, 1] : [least - 0.1 * Math.abs(least), least + 0.1 * Math.abs(least)] };
}

/** A panel of curves. */
function curvePanel(panel) {
  const hidden = new Set(), place = el("div", { class: "plot" });
  const draw = () => [
    panel.stacked ? stackedTraces(panel, hidden) : panelTraces(panel, hidden),
    layout({ xaxis: stepAxis(), yaxis: unitAxis(panel.unit, panel.log ? { type: "log", tickformat: ".2~g" } : { rangemode: panel.stacked ? "tozero" : "normal", ...flatRange(panel) }) }),
  ];
  const plot = plotted(place, draw);
  if (panel.stacked) runWatchers.push(() => drawPlot(plot));
  const keys = legend(panel, hidden, () => drawPlot(plot));
  if (panel.stacked && DATA.runs.length > 1) keys.append(runChooser());
  const binned = DATA.runs[0].curves.width;
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", `${panel.title}. ${panel.note}`);
  return el("div", { class: "panel", id: `panel-${panel.id}` }, el("h3", {}, panel.title),
    el("p", { class: "note" }, panel.note + (binned > 1 ? ` Means of ${binned} steps.` : "")),
    keys, place);
}
