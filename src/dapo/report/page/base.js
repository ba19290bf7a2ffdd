"use strict";
// What every part of the page uses: the data, elements made of text alone, numbers in words, colours, the theme.

let DATA = JSON.parse(document.getElementById("data").textContent);

/** An element. Children are elements or text; text is never markup. */
function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(made.style, value);
    else if (name === "class") made.className = value;
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

/** A drop-down list. options: [[value, words], ...]. */
function choice(options, chosen, change, attributes) {
  const made = el("select", attributes, options.map(([value, words]) => el("option", { value: value }, words)));
  made.value = chosen;
  made.addEventListener("change", () => change(made.value));
  return made;
}

/** Text for a Plotly label, where tags and entities would otherwise be read. */
function label(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}

/** A number with so many significant digits; a dash where there is none. */
function figure(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(digits - 1).replace("e+", "e").replace("-", "−").replace("e-", "e−");
  const text = size >= 1000 ? Math.round(value).toLocaleString("en-US") : String(Number(value.toPrecision(digits)));
  return text.replace("-", "−");
}

/** A share in percent. */
function percent(value, digits = 1) {
  if (value === null || value === undefined) return "–";
  return `${(100 * value).toFixed(digits)}%`.replace("-", "−");
}

/** A count with separators. */
function count(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en-US");
}

/** A number with its sign, for advantages. */
function signed(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  return (value > 0 ? "+" : "") + value.toFixed(digits).replace("-", "−");
}

/** The value of a colour variable in the theme of the moment. */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** A colour with an opacity. */
function faded(hex, opacity) {
  const parts = [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16));
  return `rgba(${parts.join(",")},${opacity})`;
}

const THEMES = ["auto", "light", "dark"];
const darkWanted = window.matchMedia("(prefers-color-scheme: dark)");

/** The reader's choice, kept where the browser allows it. */
function storedTheme() {
  try {
    const found = localStorage.getItem("dapo-report-theme");
    return THEMES.includes(found) ? found : "auto";
  } catch {
    return "auto";
  }
}

let theme = storedTheme();

/** Puts the theme on the page. */
function applyTheme(chosen) {
  theme = chosen;
  try {
    localStorage.setItem("dapo-report-theme", chosen);
  } catch {
    /* a browser that keeps nothing: the choice holds until the page is closed */
  }
  const dark = chosen === "dark" || (chosen === "auto" && darkWanted.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

applyTheme(theme);

/** The groups of runs: each is a line of its own in every picture. */
function groups() {
  return DATA.groups.map((group, place) => ({
    ...group,
    colour: `run-${place % 8}`,
    curves: group.curves || DATA.runs[group.runs[0]].curves,
    banded: group.curves !== null,
  }));
}

/** The run that panels about one run show. */
let shownRun = 0;
const runWatchers = []; // called when another run is shown
const dataWatchers = []; // called when the data are new
const themeWatchers = []; // called when colours change

/** A chooser of the run, for panels that show one; nothing where there is one run. */
function runChooser() {
  if (DATA.runs.length < 2) return null;
  const options = DATA.runs.map((run, place) => [String(place), run.label]);
  const made = choice(options, String(shownRun), (value) => {
    shownRun = Number(value);
    document.querySelectorAll("select.run-choice").forEach((other) => (other.value = value));
    runWatchers.forEach((watcher) => watcher());
  }, { class: "run-choice" });
  return el("label", {}, "run", made);
}
