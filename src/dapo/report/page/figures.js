// Pictures that are not plain curves: evaluations, the joint picture, the credit table, bars, any metric.

/** pass@1 beside pass@k over steps, a panel for each set. */
function evaluationPanels() {
  const sets = [...new Set(DATA.runs.flatMap((run) => Object.keys(run.evaluations)))];
  return sets.filter((name) => DATA.runs.some((run) => Object.keys((run.evaluations[name] || { lines: {} }).lines).length)).map((name) => {
    const place = el("div", { class: "plot", role: "img", "aria-label": `Evaluation of ${name} over steps` });
    const several = DATA.runs.length > 1;
    plotted(place, () => [evaluationTraces(name), layout({
      xaxis: axis("step", { showspikes: true, spikemode: "across", spikethickness: 1, spikedash: "solid", spikecolor: colour("faint"), unifiedhovertitle: { text: "step %{x}" } }), yaxis: unitAxis("share", { title: { text: "share of problems", font: { size: 11.5, color: colour("quiet") }, standoff: 8 }, rangemode: "tozero" }),
    })]);
    const labels = [...new Set(DATA.runs.flatMap((run) => Object.keys((run.evaluations[name] || { lines: {} }).lines)))];
    const entries = labels.map((words, i) => el("span", {}, lineSample(several ? "quiet" : EVALUATION_COLOURS[i % 4], several ? DASHES[i % 4] : "solid"), ` ${words}`));
    return el("div", { class: "panel" }, el("h3", {}, `Evaluation: ${name}`),
      el("p", { class: "note" }, "pass@1 rising while pass@k stands: the same problems are solved more often. " + (several ? "Each run by itself; point at a line for its 95% interval." : "Bands: 95% intervals over problems.")),
      el("div", { class: "legend" }, entries), place);
  });
}

const EVALUATION_COLOURS = ["c-after", "c-second", "c-right", "c-dropped"];

function evaluationTraces(name) {
  const traces = [], several = DATA.runs.length > 1, all = groups();
  DATA.runs.forEach((run, number) => {
    const own = all.find((group) => group.runs.includes(number));
    Object.entries((run.evaluations[name] || { lines: {} }).lines).forEach(([words, [steps, values, low, high]], i) => {
      const hex = colour(several ? own.colour : EVALUATION_COLOURS[i % 4]);
      if (!several) traces.push(areaBetween(steps, low, high, hex, 0.12));
      const bounds = values.map((_, j) => (low[j] === null ? "" : ` [${percent(low[j])}, ${percent(high[j])}]`));
      traces.push({ x: steps, y: values, text: bounds, name: label(several ? `${run.label}: ${words}` : words), type: "scatter", mode: "lines+markers",
        line: { color: hex, width: 1.8, dash: several ? DASHES[i % 4] : "solid" }, marker: { size: 5 }, hovertemplate: "%{y:.1%}%{text}" });
    });
  });
  return traces;
}

/** What falls first: one row a metric, all over the same steps. */
function jointPanel() {
  const rows = DATA.joint, place = el("div", { class: "plot", role: "img", "aria-label": "Entropy, clipping and diversity at each step" });
  place.style.height = `${rows.length * 92 + 60}px`;
  plotted(place, () => {
    const traces = [], axes = {}, notes = [], gap = 0.16 / rows.length, height = (1 - gap * (rows.length - 1)) / rows.length;
    rows.forEach(([metric, words, unit, role], i) => {
      const top = 1 - i * (height + gap), key = i ? `y${i + 1}` : "y", all = groups();
      axes[i ? `yaxis${i + 1}` : "yaxis"] = { ...unitAxis(unit, { nticks: 3 }), title: undefined, domain: [Math.max(0, top - height), top] };
      notes.push({ text: `<b>${words}</b>${unit === "share" || unit === "count" ? "" : ` (${unit})`}`, xref: "paper", yref: "paper", x: 0, y: top, xanchor: "left", yanchor: "bottom", showarrow: false, font: { size: 11.5, color: colour("quiet") } });
      for (const group of all) {
        const hex = colour(all.length === 1 ? `c-${role}` : group.colour);
        const name = all.length === 1 ? words : `${words}, ${group.label}`;
        curveTraces(group.curves, metric, { hex, name, dash: "solid" }, unit).forEach((trace) => traces.push({ ...trace, yaxis: key, xaxis: "x" }));
      }
    });
    const bottom = rows.length > 1 ? `y${rows.length}` : "y";
    return [traces, layout({ ...axes, xaxis: stepAxis({ anchor: bottom }), annotations: notes, hoversubplots: "axis", margin: { l: 66, r: 14, t: 24, b: 42 } })];
  });
  return el("div", { class: "panel wide" }, el("h3", {}, "Step by step"),
    el("p", { class: "note" }, "Entropy falling while duplicates rise and acceptance falls: the policy narrows, and the sampler pays for it in rounds."), place);
}

/** Entropy against a clip fraction: a point a step. */
function againstPanel(metric, words) {
  const place = el("div", { class: "plot", role: "img", "aria-label": `Entropy against ${words}` });
  place.style.height = "300px";
  plotted(place, () => {
    const all = groups();
    const traces = all.filter((group) => group.curves.values[metric] && group.curves.values["policy/entropy"]).map((group, i) => ({
      x: group.curves.values[metric], y: group.curves.values["policy/entropy"], text: group.curves.steps.map((step) => `step ${step}`), name: label(group.label),
      type: "scatter", mode: "markers", hovertemplate: "%{text}: clipped %{x:.2%}, entropy %{y:.3~g}<extra></extra>",
      marker: all.length > 1 ? { size: 5, color: colour(group.colour), opacity: 0.7 } : {
        size: 6, color: group.curves.steps, colorscale: [[0, colour("c-dropped")], [1, colour("c-plain")]], showscale: i === 0,
        colorbar: { title: { text: "step", font: { size: 11.5, color: colour("quiet") } }, thickness: 8, len: 0.9, outlinewidth: 0, tickfont: { size: 11, color: colour("quiet") }, nticks: 5 },
        line: { width: 0.5, color: colour("paper") },
      },
    }));
    return [traces, layout({ hovermode: "closest", xaxis: axis(`share of tokens clipped ${words}`, { tickformat: ".2~p" }), yaxis: unitAxis("entropy, nats") })];
  });
  return el("div", { class: "panel" }, el("h3", {}, `Entropy against tokens clipped ${words}`),
    el("p", { class: "note" }, words === "high" ? "A raised upper clip range leaves rare tokens room; here is whether entropy holds where it bites." : "The lower clip range holds back tokens that became less likely."), el("div", { class: "legend" }), place);
}

const CREDIT_WORDS = { share: "share of the gradient", norm: "gradient norm", cosine: "cosine with the gradient", proxy: "share by the proxy", tokens: "tokens", responses: "responses" };

/** The credit table as a heat map with a step chooser. */
function creditPanel() {
  const tables = () => DATA.runs[shownRun].credit;
  if (!DATA.runs.some((run) => run.credit.length)) return null;
  if (!tables().length) shownRun = DATA.runs.findIndex((run) => run.credit.length);
  let shown = "share";
  const slider = el("input", { type: "range", min: 0, "aria-label": "Step of the credit table" });
  const said = el("output", {}), body = el("div");
  const draw = () => {
    const table = tables()[Number(slider.value)];
    said.textContent = table ? `step ${table.step}` : "none in this run";
    body.replaceChildren(...(table ? [heatTable(table, shown), heatScale(table, shown), matchedLine(table)] : []));
  };
  const reset = () => { slider.max = Math.max(0, tables().length - 1); slider.value = slider.max; draw(); };
  slider.addEventListener("input", draw);
  runWatchers.push(reset);
  dataWatchers.push(() => { if (slider.value === slider.max) reset(); else slider.max = Math.max(0, tables().length - 1); });
  themeWatchers.push(draw);
  reset();
  const options = DATA.credit_figures.map((name) => [name, CREDIT_WORDS[name] || name]);
  return el("div", { class: "panel wide", id: "credit-table" }, el("h3", {}, "Credit table"),
    el("p", { class: "note" }, "Descriptive, not causal. Rows: verdict and sign of the advantage. Columns: quarters of response length of the step. A negative share pulls against the step's gradient; all shares add up to 1."),
    el("div", { class: "tools" }, runChooser(), el("label", {}, "show", choice(options, shown, (value) => { shown = value; draw(); })), el("label", {}, "step", slider), said), body);
}

function heatLimit(table, at) {
  return Math.max(1e-12, ...table.rows.flatMap((row) => row.cells.filter(Boolean).map((cell) => Math.abs(cell[at] || 0))));
}

function heatTable(table, shown) {
  const at = DATA.credit_figures.indexOf(shown), tokensAt = DATA.credit_figures.indexOf("tokens"), responsesAt = DATA.credit_figures.indexOf("responses");
  const limit = heatLimit(table, at), q = table.quartiles, adds = !["norm", "cosine"].includes(shown);
  const write = (value) => (value === null ? "–" : ["share", "proxy"].includes(shown) ? percent(value) : figure(value));
  const bounds = q ? [`under ${figure(q[0])}`, `${figure(q[0])} to ${figure(q[1])}`, `${figure(q[1])} to ${figure(q[2])}`, `from ${figure(q[2])}`] : ["", "", "", ""];
  const total = (cells) => cells.reduce((sum, cell) => sum + ((cell && cell[at]) || 0), 0);
  const sum = (cells) => (adds ? el("td", { class: "sum" }, write(total(cells))) : null);
  const heads = ["shortest", "second", "third", "longest"].map((words, i) => el("th", { scope: "col" }, `${words} quarter`, el("br"), bounds[i] ? `${bounds[i]} tokens` : ""));
  const rows = table.rows.map((row) => el("tr", {}, el("th", { scope: "row" }, row.label), row.cells.map((cell) => {
    if (!cell) return el("td", { class: "none" }, "–");
    const strength = Math.min(1, Math.abs(cell[at] || 0) / limit), hex = colour(cell[at] < 0 ? "c-wrong" : "c-after");
    return el("td", { style: { background: faded(hex, 0.05 + 0.6 * strength) } }, write(cell[at]),
      el("span", { class: "sub" }, `${count(cell[responsesAt])} resp., ${count(cell[tokensAt])} tok.`));
  }), sum(row.cells)));
  const foot = adds ? el("tr", {}, el("th", { scope: "row" }, "all"), [0, 1, 2, 3].map((i) => sum(table.rows.map((row) => row.cells[i]))), sum(table.rows.flatMap((row) => row.cells))) : null;
  return el("table", { class: "heat" }, el("thead", {}, el("tr", {}, el("th", {}), heads, adds ? el("th", { class: "sum" }, "all") : null)), el("tbody", {}, rows, foot));
}

function heatScale(table, shown) {
  const limit = heatLimit(table, DATA.credit_figures.indexOf(shown)), write = (v) => (["share", "proxy"].includes(shown) ? percent(v) : figure(v));
  const ends = [faded(colour("c-wrong"), 0.65), faded(colour("c-wrong"), 0.05), faded(colour("c-after"), 0.05), faded(colour("c-after"), 0.65)];
  return el("div", { class: "scale" }, write(-limit), el("i", { style: { background: `linear-gradient(90deg, ${ends.join(",")})` } }), write(limit),
    table.gradient_norm === null ? null : el("span", {}, `· gradient norm of the step ${figure(table.gradient_norm)}`));
}

function matchedLine(table) {
  const m = table.matched;
  if (m.right_per_token === undefined) return el("p");
  const words = (a, b) => `right ${figure(a)}, wrong ${figure(b)}`;
  return el("p", { class: "quietly" }, `Per token: ${words(m.right_per_token, m.wrong_per_token)}. Matched for length: ${words(m.right_matched, m.wrong_matched)}.`);
}

/** Rows with a bar each. lines: [[words, amount, note], ...]. */
function bars(lines, write) {
  const whole = lines.reduce((sum, line) => sum + line[1], 0) || 1, most = Math.max(...lines.map((line) => line[1]), 1e-12);
  return el("table", { class: "bars" }, el("tbody", {}, lines.map(([words, amount, note, role]) => el("tr", {}, el("td", {}, words),
    el("td", {}, el("div", { class: "bar", style: { width: `${(100 * amount) / most}%`, background: `var(--c-${role || "after"})` } })),
    el("td", { class: "figure" }, write(amount)), el("td", { class: "figure" }, percent(amount / whole)), el("td", { class: "quietly" }, note || "")))));
}

/** Seconds in words. */
function duration(seconds) {
  return seconds < 90 ? `${figure(seconds)} s` : seconds < 5400 ? `${figure(seconds / 60)} min` : `${figure(seconds / 3600)} h`;
}

/** The whole run's time by phase, and the profile where there is one. */
function budgetPanels() {
  const whole = el("div"), profile = el("div");
  const phases = [["sampling", "time/rollout_s", "after"], ["grading", "time/grade_s", "right"], ["training", "time/train_s", "high"], ["writing", "time/write_s", "dropped"], ["evaluation", "time/eval_s", "second"], ["saving", "time/save_s", "low"]];
  const draw = () => {
    const run = DATA.runs[shownRun], curves = run.curves;
    const sum = (metric) => (curves.values[metric] || []).reduce((total, value) => total + (value || 0) * curves.width, 0);
    const lines = phases.map(([words, metric, role]) => [words, sum(metric), "", role]).filter((line) => line[1] > 0);
    const other = sum("time/step_s") - ["time/rollout_s", "time/grade_s", "time/train_s", "time/write_s"].reduce((total, metric) => total + sum(metric), 0);
    if (other > 0.005 * sum("time/step_s")) lines.push(["other work of steps", other, "", "before"]);
    whole.replaceChildren(lines.length ? bars(lines, duration) : el("p", { class: "quietly" }, "No times in this run."));
    const spans = run.profile ? run.profile.spans.map(([words, seconds, calls]) => [words, seconds, `${count(calls)} calls`]) : [];
    const rest = run.profile ? run.profile.seconds - spans.reduce((total, span) => total + span[1], 0) : 0;
    if (rest > 0) spans.push(["between spans", rest, "", "before"]);
    profile.replaceChildren(run.profile ? bars(spans, duration) : el("p", { class: "quietly" }, "No profile.jsonl in this run; dapo train --profile writes one."));
  };
  runWatchers.push(draw);
  dataWatchers.push(draw);
  draw();
  const chooser = DATA.runs.length > 1 ? el("div", { class: "tools" }, runChooser()) : null;
  return [
    el("div", { class: "panel wide" }, el("h3", {}, "Time of the whole run, by phase"), chooser, whole),
    el("div", { class: "panel wide" }, el("h3", {}, "Profile"), el("p", { class: "note" }, "Spans of the profiler: own time alone, without overlap."), profile),
  ];
}

/** Any metric of the runs by its name. */
function explorerPanel() {
  const names = [...new Set(DATA.runs.flatMap((run) => Object.keys(run.curves.values)))].sort();
  if (!names.length) return null;
  let shown = names[0];
  const place = el("div", { class: "plot" });
  place.style.height = "280px";
  const plot = plotted(place, () => [
    groups().flatMap((group) => curveTraces(group.curves, shown, { hex: colour(group.colour), name: group.label, dash: "solid" }, "")),
    layout({ xaxis: stepAxis(), yaxis: axis(label(shown), { tickformat: ",.6~g" }) }),
  ]);
  const select = choice(names.map((name) => [name, name]), shown, (value) => { shown = value; drawPlot(plot); }, { id: "metric" });
  return el("div", { class: "panel wide" }, el("h3", {}, "Any metric"), el("p", { class: "note" }, "Everything in metrics.jsonl, by its name."),
    el("div", { class: "tools" }, el("label", {}, "metric", select)), place);
}
