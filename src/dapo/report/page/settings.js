// The head of the page, warnings, configuration and manifest.

/** The verdict, figures and warnings of a run; of several, a table of figures and the rest folded. */
function summaryParts() {
  if (DATA.runs.length === 1) {
    const run = DATA.runs[0];
    const cards = run.summary.cards.map((card) => el("div", { class: "card" }, el("div", { class: "label" }, card.label), el("div", { class: "value" }, card.value), el("div", { class: "small" }, card.note)));
    return [el("p", { class: "verdict" }, run.summary.verdict), el("div", { class: "cards" }, cards), ...warningParts(run)];
  }
  const folded = DATA.runs.map((run) => el("details", { class: "of-run" }, el("summary", {}, `${run.label}: ${run.summary.warnings.length + run.notes.length} warnings`), el("p", { class: "verdict" }, run.summary.verdict), warningParts(run)));
  return [runList(), resultsPanel(), differencesPanel(), ...folded];
}

/** The figures of several runs, one a row. */
function resultsPanel() {
  const labels = [...new Set(DATA.runs.flatMap((run) => run.summary.cards.map((card) => card.label)))];
  const rows = DATA.runs.map((run) => el("tr", {}, el("th", { scope: "row" }, run.label), labels.map((words) => {
    const card = run.summary.cards.find((one) => one.label === words);
    return el("td", {}, el("span", { style: { whiteSpace: "nowrap" } }, card ? card.value : "–"), card ? el("span", { class: "small" }, card.note) : null);
  })));
  const heads = el("tr", {}, el("th", {}, "run"), labels.map((words) => el("th", { scope: "col" }, words)));
  return el("div", { class: "panel", style: { marginBottom: "16px" } }, el("h3", {}, "Results"), el("div", { class: "scroll" }, el("table", { class: "results" }, el("thead", {}, heads), el("tbody", {}, rows))));
}

/** The lines of all pictures: their colours, and what each is. */
function runList() {
  return el("ul", { class: "runs" }, groups().map((group) => el("li", {}, el("span", { class: "swatch", style: { background: `var(--${group.colour})` } }), group.label, el("span", { class: "quiet" }, ` (${group.note})`))));
}

function warningParts(run) {
  const said = [...run.summary.warnings, ...run.notes];
  const lines = [...run.summary.checks.map((row) => [row.step, `check ${row.check}`, row.message, figure(row.value), figure(row.bound), row.action]),
    ...run.summary.alerts.map((row) => [row.step, `alert ${row.alert}`, [row.message, row.advice ? `Advice: ${row.advice}` : ""].filter(Boolean).join(". "), figure(row.value), "", row.metric])];
  return [
    said.length ? el("ul", { class: "warnings" }, said.map((text) => el("li", {}, text))) : el("p", { class: "quietly", style: { marginTop: "14px" } }, "Nothing to warn of."),
    lines.length ? el("details", { open: lines.length < 12 }, el("summary", {}, `Findings and alerts (${lines.length})`), el("div", { class: "panel scroll", style: { marginTop: "8px", maxHeight: "320px" } },
      table(["step", "what", "says", "value", "bound", ""], lines.sort((a, b) => b[0] - a[0]), [0, 3, 4]))) : null,
    run.summary.missing.length ? el("details", {}, el("summary", {}, `Not in this run (${run.summary.missing.length})`), el("ul", {}, run.summary.missing.map((words) => el("li", {}, words)))) : null,
  ];
}

/** A plain table. figures: the columns that hold numbers. */
function table(heads, rows, figures = [], code = [], name = null) {
  const kind = (i) => [figures.includes(i) ? "figure" : "", code.includes(i) ? "code" : ""].join(" ").trim() || null;
  return el("table", { class: name }, el("thead", {}, el("tr", {}, heads.map((words, i) => el("th", { scope: "col", class: kind(i) }, words)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, i) => el("td", { class: kind(i) }, cell === null || cell === undefined ? "" : String(cell)))))));
}

/** The settings in which the runs differ. */
function differencesPanel() {
  const columns = DATA.runs.map((run) => Object.fromEntries(run.settings.map((one) => [one.key, one.value])));
  const keys = [...new Set(columns.flatMap((one) => Object.keys(one)))].filter((key) => !["name", "description"].includes(key) && new Set(columns.map((one) => one[key])).size > 1);
  const body = keys.length ? table(["setting", ...DATA.runs.map((run) => run.label)], keys.map((key) => [key, ...columns.map((one) => one[key] ?? "–")]), [], [0, ...columns.map((_, i) => i + 1)]) : el("p", { class: "quietly" }, "Their settings are the same.");
  return el("div", { class: "panel" }, el("h3", {}, "In what the runs differ"), el("div", { class: "scroll" }, body));
}

/** Configuration with the source of each value. */
function settingsPanel() {
  const body = el("div", { class: "scroll" }), said = el("span");
  const search = el("input", { type: "search", placeholder: "key, value or source", "aria-label": "Search the configuration" });
  const changed = el("input", { type: "checkbox", id: "changed-only" });
  const draw = () => {
    const needle = search.value.toLowerCase(), all = DATA.runs[shownRun].settings;
    const rows = all.filter((one) => (!changed.checked || one.changed) && `${one.key} ${one.value} ${one.source}`.toLowerCase().includes(needle));
    said.textContent = `${rows.length} of ${all.length} keys`;
    body.replaceChildren(table(["key", "value", "source", "meaning"], rows.map((one) => [one.key, one.value, one.source, one.meaning]), [], [0, 1], "config"));
  };
  search.addEventListener("input", draw);
  changed.addEventListener("change", draw);
  runWatchers.push(draw);
  draw();
  return el("div", { class: "panel wide", id: "settings" }, el("h3", {}, "Configuration"), el("p", { class: "note" }, "Every value with where it comes from: the paper, code at a commit, or a choice and its reason."),
    el("div", { class: "tools" }, runChooser(), search, el("label", {}, changed, "only what is not the default"), said), body);
}

/** What the run was made of. */
function manifestPanel() {
  const body = el("div", { class: "scroll" });
  const draw = () => {
    const lines = DATA.runs[shownRun].manifest;
    body.replaceChildren(lines.length ? table(["name", "value"], lines, [], [0, 1]) : el("p", { class: "quietly" }, "No manifest.json in this run."));
  };
  runWatchers.push(draw);
  draw();
  return el("div", { class: "panel wide" }, el("h3", {}, "Manifest"), el("p", { class: "note" }, "Code, versions, data, machine. dapo recipe verify compares two of them."), body);
}
