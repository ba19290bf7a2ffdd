// Puts the page together, and follows the run where it is served.

/** A heading, a sentence, and what belongs to it. */
function section(id, title, lead, ...parts) {
  return el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), lead ? el("p", { class: "lead" }, lead) : null, ...parts);
}

function header() {
  const title = DATA.runs.length > 1 ? `${DATA.runs.length} runs` : DATA.runs[0].label;
  document.title = `${title} · dapo report`;
  const axes = Object.entries(X_AXES).filter(([, one]) => DATA.runs.some((run) => one.of(run.curves))).map(([name, one]) => [name, one.words]);
  const windows = [["", "suited"], ["1", "none"], ["5", "5 points"], ["11", "11 points"], ["25", "25 points"], ["51", "51 points"]];
  const button = el("button", { type: "button", id: "theme", title: "Light, dark, or as the system has it" }, `Theme: ${theme}`);
  button.addEventListener("click", () => {
    applyTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]);
    button.textContent = `Theme: ${theme}`;
    repaint();
  });
  document.getElementById("top").replaceChildren(...[el("span", { class: "brand" }, "dapo"), el("h1", {}, title),
    DATA.live ? el("span", { class: "live", id: "live", role: "status" }, "live") : null,
    el("label", {}, "x axis", choice(axes, view.x, (value) => { view.x = value; redraw(); }, { id: "x-axis" })),
    el("label", {}, "smoothing", choice(windows, view.smooth === null ? "" : String(view.smooth), (value) => { view.smooth = value === "" ? null : Number(value); redraw(); }, { id: "smoothing" })), button].filter(Boolean));
}

function repaint() {
  redraw();
  themeWatchers.forEach((watcher) => watcher());
}

/** The panels of a section: curves, and the pictures of its own. */
function panelsOf(one) {
  const own = one.panel.map(curvePanel);
  const has = (metric) => DATA.runs.some((run) => run.curves.values[metric]);
  if (one.id === "learning") return [...evaluationPanels(), ...own];
  if (one.id === "ledger") return [DATA.runs.some((run) => run.flow.total.draws.length) ? flowPanel() : null, ...own];
  if (one.id === "credit") return [creditPanel(), ...own];
  if (one.id === "cost") return [...budgetPanels(), ...own];
  if (one.id === "diversity") {
    const against = ["high", "low"].filter((words) => has("policy/entropy") && has(`clip/${words}_fraction`));
    return [DATA.joint.length ? jointPanel() : null, ...against.map((words) => againstPanel(`clip/${words}_fraction`, words))];
  }
  return own;
}

/** Everything but the rollouts, which keep their place and their filters when the page is built anew. */
function build() {
  forgetPlots();
  for (const watchers of [runWatchers, dataWatchers, themeWatchers]) watchers.length = 0;
  header();
  const curves = DATA.sections.map((one) => {
    const panels = panelsOf(one).filter(Boolean);
    return section(one.id, one.title, one.note, panels.length ? el("div", { class: "grid" }, panels) : el("p", { class: "quietly" }, "This run has none of these metrics."));
  });
  const binned = DATA.runs[0].curves.width > 1 ? `Curves are means of ${DATA.runs[0].curves.width} steps each, with the least and the greatest as a band. ` : "";
  const notes = `${binned}Smoothed curves are centred moving means, with the values themselves behind them. Written by dapo ${DATA.version}.`;
  const lead = "A sample, chosen by hash over all steps. ";
  const again = DATA.live ? el("button", { type: "button", onclick: freshRollouts }, "Load new rollouts") : null;
  const keys = el("p", { class: "lead" }, lead, el("kbd", {}, "/"), " searches, ", el("kbd", {}, "j"), " ", el("kbd", {}, "k"), " or arrows move in the list. Control characters and characters that reorder text are shown as escapes. ", again);
  const rollouts = (browser.section ??= section("rollouts", "Rollouts", "", keys, ...rolloutPanel()));
  runWatchers.push(refilter);
  themeWatchers.push(drawDetail);
  const parts = [section("summary", "Summary", "", ...summaryParts().filter(Boolean)), ...curves,
    rollouts,
    section("setup", "Configuration", "", el("div", { class: "grid" }, settingsPanel(), manifestPanel())),
    section("metrics", "All metrics", "", el("div", { class: "grid" }, explorerPanel())), el("p", { class: "foot" }, notes)];
  document.getElementById("main").replaceChildren(...parts);
  navigation();
}

function navigation() {
  const links = [...document.querySelectorAll("main > section")].map((one) => el("a", { href: `#${one.id}` }, one.querySelector("h2").textContent));
  document.getElementById("nav").replaceChildren(...links);
  const spy = () => {
    const tops = [...document.querySelectorAll("main > section")].map((one) => one.getBoundingClientRect().top);
    const atEnd = window.innerHeight + window.scrollY >= document.body.scrollHeight - 2;
    const here = atEnd ? tops.length - 1 : Math.max(0, tops.filter((top) => top < 140).length - 1);
    links.forEach((link, i) => { link.classList.toggle("here", i === here); if (i === here) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current"); });
  };
  spy();
  window.onscroll = spy;
}

document.addEventListener("keydown", (event) => {
  const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(document.activeElement.tagName);
  if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const search = document.getElementById("filter-search");
  search.focus();
  search.scrollIntoView({ block: "center" });
});

/** Which curves and tables there are: when this changes the page is built anew, else only drawn anew. */
function shape(data) {
  return JSON.stringify([data.sections, data.joint, data.groups.map((one) => one.runs), data.runs.map((run) => [Object.keys(run.curves.values), Object.keys(run.evaluations), run.profile === null, run.credit.length > 0])]);
}

let lastText = "";

/** Asks for what is new, and shows it. */
async function follow() {
  const light = document.getElementById("live");
  try {
    const answer = await fetch("data.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(String(answer.status));
    const text = await answer.text();
    light.classList.remove("lost");
    light.textContent = `live, ${new Date().toLocaleTimeString()}`;
    if (text !== lastText) {
      lastText = text;
      take(JSON.parse(text));
    }
  } catch {
    light.classList.add("lost");
    light.textContent = "not reached; asking again";
  }
  setTimeout(follow, 3000);
}

function take(fresh) {
  const same = shape(fresh) === shape(DATA);
  DATA = fresh;
  if (!same) {
    build();
    return;
  }
  const head = document.getElementById("summary");
  head.replaceChildren(head.querySelector("h2"), ...summaryParts().filter(Boolean));
  redraw();
  dataWatchers.forEach((watcher) => watcher());
}

async function freshRollouts() {
  const answer = await fetch("rollouts", { cache: "no-store" });
  browser.samples = await unpack(await answer.text());
  refilter();
}

async function start() {
  build();
  try {
    browser.samples = await unpack(document.getElementById("rollout-data").textContent);
    refilter();
  } catch (error) {
    browser.count.textContent = `The rollouts could not be unpacked by this browser: ${error.message}`;
  }
  document.documentElement.dataset.ready = "yes";
  if (DATA.live) setTimeout(follow, 1500);
}

darkWanted.addEventListener("change", () => { applyTheme(theme); repaint(); });
window.addEventListener("beforeprint", () => redraw(true));
start();
