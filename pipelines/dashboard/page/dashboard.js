// The dashboard: asks the server for figures and shows them. Every number comes as exact digits and stays text until it is drawn.

const byId = (id) => document.getElementById(id);
const AGAIN_MS = 30_000;
const SVG = "http://www.w3.org/2000/svg";
const CHART = { height: 250, least: 280, left: 54, right: 6, top: 12, bottom: 26, labels: 64 };
const MANY_CHARACTERS = 12;
const WORDS = { "1h": "Last hour", "24h": "Last 24 hours", "168h": "Last 7 days" };

const state = { title: "", rollups: [], rollup: null, group: [], window: "", measure: "", bar: null, answer: null, asked: 0 };

// -- numbers and times

/** Digits with separators, such as 12,345.60; the text is exact, so no float may touch it. */
function grouped(digits) {
  const [whole, rest] = digits.split(".");
  const signed = whole.replace(/\B(?=(\d{3})+(?!\d))/g, ",");
  return rest === undefined ? signed : `${signed}.${rest}`;
}

function withUnit(text, unit) {
  if (!unit) return text;
  return /^\p{Sc}$/u.test(unit) ? (text.startsWith("-") ? `-${unit}${text.slice(1)}` : `${unit}${text}`) : `${text}\u00a0${unit}`;
}

function shown(measure, digits) {
  return digits === null || digits === undefined ? "–" : withUnit(grouped(digits), measure.unit);
}

/** The parts of a figure: what stands behind the point is set smaller. */
function withCents(text) {
  const [, whole, cents, rest] = text.match(/^([^.]*)(\.\d+)?(.*)$/);
  return cents ? [whole, element("span", { class: "cents" }, cents), rest] : [text];
}

function windowWords(name, seconds) {
  if (WORDS[name]) return WORDS[name];
  return seconds % 86400 === 0 ? `Last ${seconds / 86400} days` : `Last ${name}`;
}

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { weekday: "short", day: "numeric", month: "short" });
const zone = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" }).formatToParts(0).find((part) => part.type === "timeZoneName").value;
const moment = (date) => `${day.format(date)} ${clock.format(date)}`;

function spanOf(begin, end) {
  const [first, last] = [new Date(begin * 1000), new Date(end * 1000)];
  const isOneDay = day.format(first) === day.format(last);
  return `${moment(first)} – ${isOneDay ? clock.format(last) : moment(last)}`;
}

// -- building elements

/** An element with text only: what a record holds is never read as markup. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function drawn(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function choices(place, entries, current, choose) {
  const buttons = entries.map(([value, words]) => {
    const button = element("button", { type: "button", "aria-pressed": String(value === current) }, words);
    button.addEventListener("click", () => choose(value));
    return button;
  });
  place.replaceChildren(...buttons);
}

// -- what the page shows

function notice(text) {
  byId("notice").hidden = !text;
  byId("notice").textContent = text;
}

function showChoices() {
  const { rollup, rollups } = state;
  byId("pipeline").textContent = state.title;
  byId("title").textContent = state.group.length ? state.group.join(" · ") : rollup.name;
  document.title = `${byId("title").textContent} – ${state.title}`;
  byId("rollup-field").hidden = rollups.length < 2;
  byId("estimates").hidden = !rollup.measures.some((measure) => measure.is_estimated);
  byId("group-name").textContent = rollup.groups.join(", ").replaceAll("_", " ");
  const windows = rollup.windows.map((one) => [one.name, windowWords(one.name, one.seconds)]);
  choices(byId("windows"), windows, state.window, (name) => change({ window: name }));
}

function showTiles(answer) {
  const tiles = state.rollup.measures.filter((measure) => measure.kind !== "top").map((measure) => {
    const digits = answer.figures[measure.name];
    const value = element("dd", { class: "value", "data-measure": measure.name });
    const text = shown(measure, digits);
    if (text.length > MANY_CHARACTERS) value.classList.add("long");
    if (measure.is_estimated && digits !== null) value.append(element("span", { class: "about", title: "an estimate" }, "≈"));
    value.append(...withCents(text));
    return element("div", { class: "tile" }, element("dt", {}, measure.label), value, changeOf(measure, digits, answer));
  });
  byId("tiles").replaceChildren(...tiles);
}

function changeOf(measure, digits, answer) {
  const before = answer.previous[measure.name];
  const line = element("dd", { class: "change" });
  if (before === undefined || Number(before) === 0) return line;
  const percent = Math.round((Number(digits) / Number(before) - 1) * 100);
  const direction = percent > 0 ? "up" : percent < 0 ? "down" : "same";
  const mark = { up: "▲", down: "▼", same: "=" }[direction];
  line.append(element("span", { class: direction }, `${mark} ${Math.abs(percent)} %`), ` · was ${shown(measure, before)}`);
  return line;
}

function showTops(answer) {
  const tops = state.rollup.measures.filter((measure) => measure.kind === "top").map((measure) => {
    const items = answer.figures[measure.name];
    const most = Math.max(1, ...items.map((one) => Number(one.amount)));
    const rows = items.map((one, index) => {
      const rect = drawn("rect", { width: (100 * Number(one.amount)) / most, height: 6, rx: 0 });
      const share = drawn("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" }, rect);
      return element(
        "li", {},
        element("span", { class: "rank" }, `${index + 1}`),
        element("span", { class: "item" }, one.item || "(no name)"),
        element("span", { class: "amount" }, shown(measure, one.amount)),
        element("span", { class: "share" }, share),
      );
    });
    const list = rows.length ? element("ol", {}, ...rows) : element("p", { class: "none" }, "None in this time.");
    return element("section", { class: "panel", "data-measure": measure.name }, element("h2", {}, measure.label), list);
  });
  byId("tops").replaceChildren(...tops);
}

/** Steps of 1, 2, 2.5 or 5 times a power of ten that cover `most` with at most five lines; whole ones for counts. */
function ticks(most, isWhole) {
  const raw = Math.max(most, isWhole ? 1 : 1e-9) / 5;
  const power = 10 ** Math.floor(Math.log10(raw));
  const factors = isWhole && power < 10 ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10];
  let step = factors.map((factor) => factor * power).find((one) => one >= raw);
  if (isWhole) step = Math.max(1, step);
  const lines = [];
  for (let line = 0; line < most + step * 0.999; line += step) lines.push(line);
  return lines.length > 1 ? lines : [0, step];
}

const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

function showChart(answer) {
  const additive = state.rollup.measures.filter((measure) => measure.is_additive);
  byId("chart-panel").hidden = additive.length === 0;
  if (additive.length === 0) return;
  const preferred = additive.find((measure) => measure.name === state.measure) ?? additive.find((measure) => measure.kind === "sum") ?? additive[0];
  const step = answer.step_seconds;
  byId("chart-title").textContent = `${preferred.label} per ${stepWords(step)}`;
  byId("measures").hidden = additive.length < 2;
  choices(byId("measures"), additive.map((one) => [one.name, one.label]), preferred.name, (name) => {
    state.measure = name;
    showChart(answer);
    byId("measures").querySelector("[aria-pressed=true]").focus();
  });
  const wasFocused = byId("chart").contains(document.activeElement);
  byId("reading").textContent = answer.series.some((one) => Number(one[preferred.name]) > 0) ? peak(preferred, answer.series, step) : "\u00a0";
  const { svg, read } = chartOf(preferred, answer.series, step);
  byId("chart").replaceChildren(svg);
  if (wasFocused) {
    svg.focus();
    read(answer.series.findIndex((one) => one.begin === state.bar));
  }
  const rows = answer.series.map((one) => element("tr", {}, element("th", { scope: "row" }, spanOf(one.begin, one.begin + step)), element("td", {}, shown(preferred, one[preferred.name]))));
  byId("chart-table").replaceChildren(element("caption", {}, byId("chart-title").textContent), ...rows);
}

function stepWords(seconds) {
  if (seconds % 86400 === 0) return seconds === 86400 ? "day" : `${seconds / 86400} days`;
  if (seconds % 3600 === 0) return seconds === 3600 ? "hour" : `${seconds / 3600} hours`;
  return seconds % 60 === 0 ? `${seconds / 60} minutes` : `${seconds} seconds`;
}

function chartOf(measure, series, step) {
  const { height, left, right, top, bottom } = CHART;
  const width = Math.max(CHART.least, byId("chart").clientWidth);
  const lines = ticks(Math.max(0, ...series.map((one) => Number(one[measure.name]))), measure.scale === 0);
  const most = lines.at(-1);
  const y = (value) => top + (height - top - bottom) * (1 - Math.max(0, value) / most);
  const slot = (width - left - right) / series.length;
  const attributes = { role: "img", tabindex: 0, "aria-label": `${summary(measure, series, step)}. Arrow keys read the bars.` };
  const svg = drawn("svg", { width, height, viewBox: `0 0 ${width} ${height}`, ...attributes });
  const groups = [];
  let at = -1;
  const read = (index) => {
    if (!series[index]) return;
    at = index;
    const { begin } = series[index];
    state.bar = begin;
    groups.forEach((group, number) => group.classList.toggle("read", number === index));
    byId("reading").textContent = `${spanOf(begin, begin + step)}: ${shown(measure, series[index][measure.name])}`;
  };
  for (const line of lines) {
    svg.append(drawn("line", { class: "grid", x1: left, x2: width - right, y1: y(line), y2: y(line) }));
    svg.append(drawn("text", { x: left - 8, y: y(line) + 4, "text-anchor": "end" }, withUnit(short.format(line), measure.unit)));
  }
  const every = Math.ceil((series.length * CHART.labels) / (width - left - right));
  series.forEach((one, index) => {
    const x = left + index * slot;
    const value = Number(one[measure.name]);
    const tall = Math.max(0, y(0) - y(value));
    const bar = drawn("rect", { class: "bar-of-chart", x: x + slot * 0.14, width: slot * 0.72, y: y(0) - tall, height: tall, rx: Math.min(3, slot * 0.2) });
    const area = drawn("rect", { class: "slot", x, width: slot, y: top, height: height - top - bottom });
    const group = drawn("g", {}, bar, area);
    group.addEventListener("mouseenter", () => read(index));
    group.addEventListener("click", () => read(index));
    groups.push(group);
    svg.append(group);
    if (index % every === 0) svg.append(drawn("text", { x: x + slot / 2, y: height - 8, "text-anchor": "middle" }, label(one.begin, step, series)));
  });
  svg.addEventListener("keydown", (event) => {
    const last = series.length - 1;
    const to = { ArrowRight: Math.min(last, at + 1), ArrowLeft: at < 0 ? last : Math.max(0, at - 1), Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    read(to);
  });
  return { svg, read };
}

function label(begin, step, series) {
  const date = new Date(begin * 1000);
  return series.length * step > 2 * 86400 ? day.format(date).replace(/ \w+$/, "") : clock.format(date);
}

function summary(measure, series, step) {
  return `${measure.label} per ${stepWords(step)}. ${peak(measure, series, step)}`;
}

function peak(measure, series, step) {
  const best = series.reduce((most, one) => (Number(one[measure.name]) > Number(most[measure.name]) ? one : most), series[0]);
  return `Most: ${shown(measure, best[measure.name])}, ${spanOf(best.begin, best.begin + step)}`;
}

function showFreshness(answer) {
  const refreshed = new Date(answer.refreshed_at);
  const late = Date.now() - refreshed > 3000 * state.rollup.refresh_seconds;
  byId("freshness").textContent = `Refreshed ${moment(refreshed)} ${zone}, every ${stepWords(state.rollup.refresh_seconds)}`;
  if (late) notice(`ClickHouse has not refreshed these figures since ${moment(refreshed)}. Look at system.view_refreshes there.`);
}

function show(answer) {
  const isEmpty = answer.as_of === null;
  byId("content").hidden = isEmpty;
  byId("empty").hidden = !isEmpty;
  notice("");
  byId("span").textContent = "";
  if (isEmpty) {
    byId("empty-text").textContent = `The first figures appear within ${stepWords(state.rollup.refresh_seconds)} of the first row.`;
    byId("freshness").textContent = "";
    return;
  }
  const until = new Date(answer.as_of) / 1000;
  const seconds = state.rollup.windows.find((one) => one.name === state.window).seconds;
  byId("span").textContent = `${spanOf(until - seconds, until)} ${zone}`;
  showTiles(answer);
  showChart(answer);
  showTops(answer);
  showFreshness(answer);
}

// -- asking the server

async function ask(path, parameters = {}) {
  const answer = await fetch(`/api/${path}?${new URLSearchParams(parameters)}`);
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error);
  return body;
}

async function load() {
  const asked = ++state.asked;
  byId("figures").setAttribute("aria-busy", "true");
  try {
    const answer = await ask("figures", { rollup: state.rollup.name, window: state.window, group: JSON.stringify(state.group) });
    if (asked !== state.asked) return;
    state.answer = answer;
    show(answer);
  } catch (error) {
    if (asked !== state.asked) return;
    const older = state.answer?.refreshed_at ? ` Shown are the figures of ${moment(new Date(state.answer.refreshed_at))}.` : "";
    notice(`The figures cannot be read: ${error.message}.${older} The page tries again every ${AGAIN_MS / 1000} seconds.`);
  } finally {
    if (asked === state.asked) byId("figures").setAttribute("aria-busy", "false");
  }
}

function change(changed) {
  Object.assign(state, changed);
  const query = new URLSearchParams({ window: state.window });
  if (state.rollups.length > 1) query.set("rollup", state.rollup.name);
  state.rollup.groups.forEach((name, index) => query.set(name, state.group[index] ?? ""));
  history.replaceState(null, "", `?${query}`);
  const focused = document.activeElement?.textContent;
  showChoices();
  [...byId("windows").children].find((button) => button.textContent === focused)?.focus();
  return load();
}

async function chooseRollup(name, wanted) {
  state.rollup = state.rollups.find((one) => one.name === name) ?? state.rollups[0];
  const { groups } = await ask("groups", { rollup: state.rollup.name });
  const asked = state.rollup.groups.map((one) => wanted.get(one));
  const known = groups.find((group) => group.every((text, index) => text === asked[index]));
  state.group = known ?? groups[0] ?? state.rollup.groups.map(() => "");
  const options = groups.map((group) => element("option", { value: JSON.stringify(group) }, group.join(" · ") || "(no name)"));
  byId("group").replaceChildren(...options);
  byId("group").value = JSON.stringify(state.group);
  byId("group-field").hidden = state.rollup.groups.length === 0 || groups.length === 0;
  const window = state.rollup.windows.find((one) => one.name === wanted.get("window")) ?? state.rollup.windows[0];
  state.answer = null;
  await change({ window: window.name });
  return groups.length;
}

async function begin() {
  const wanted = new URLSearchParams(location.search);
  try {
    const { title, rollups } = await ask("rollups");
    Object.assign(state, { title, rollups });
    byId("rollup").replaceChildren(...rollups.map((one) => element("option", { value: one.name }, one.name.replaceAll("_", " "))));
    byId("rollup").addEventListener("change", (event) => chooseRollup(event.target.value, new URLSearchParams()));
    byId("group").addEventListener("change", (event) => change({ group: JSON.parse(event.target.value), answer: null }));
    const found = await chooseRollup(wanted.get("rollup"), wanted);
    byId("rollup").value = state.rollup.name;
    setInterval(() => (state.answer?.as_of ? load() : chooseRollup(state.rollup.name, new URLSearchParams(location.search)).catch(later)), AGAIN_MS);
    return found;
  } catch (error) {
    later(error);
    byId("figures").setAttribute("aria-busy", "false");
    setTimeout(begin, AGAIN_MS);
    return 0;
  }
}

function later(error) {
  notice(`The figures cannot be read: ${error.message}. The page tries again every ${AGAIN_MS / 1000} seconds.`);
}

let widthBefore = 0;
new ResizeObserver(([{ contentRect }]) => {
  if (contentRect.width === widthBefore || !state.answer?.as_of) return;
  widthBefore = contentRect.width;
  showChart(state.answer);
}).observe(byId("chart"));

begin();
