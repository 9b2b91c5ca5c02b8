// Puts the market's records into the page. Every text from a record goes in by textContent.

import * as format from "./format.js";
import { GLYPHS, isNumber } from "./format.js";

const RESULTS = 40;
const RECENT = 12;
const MEMBERS = 6;
// UTC ms of 2010 and 2100: whole numbers between them are times.
const EARLIEST = 1_262_304_000_000;
const LATEST = 4_102_444_800_000;

const find = (id) => document.getElementById(id);

function write(id, text) {
  const element = find(id);
  if (element.textContent !== text) element.textContent = text;
}

function make(tag, text, data = {}) {
  const element = document.createElement(tag);
  element.textContent = text;
  Object.assign(element.dataset, data);
  return element;
}

function withGlyph(direction) {
  return GLYPHS[direction] ? `${GLYPHS[direction]} ${direction}` : "–";
}

export function renderNext(market) {
  const prediction = market.predictions.last;
  const lastClose = market.candles.last?.close;
  const digits = format.priceDigits(market.candles.items.slice(-50));
  const direction = prediction?.direction ?? null;
  // History is told candle by candle too; its forecasts were for candles long closed.
  write("next-title", market.status?.phase === "warming_up" ? "Next candle, replaying history" : "Next candle");
  find("call").dataset.direction = direction ?? "none";
  write("next-time", prediction ? `${format.clock(prediction.open_time)} UTC` : "–");
  write("call-glyph", GLYPHS[direction] ?? "·");
  write("call-word", direction ?? "waiting");
  write("call-chance", direction ? format.percent(prediction[`p_${direction}`]) : "");
  renderOdds(prediction);
  const move = isNumber(lastClose) && isNumber(prediction?.close) ? prediction.close - lastClose : null;
  const moved = move === null ? "" : ` (${format.signed(move, digits + 1)})`;
  write("next-close", `${format.fixed(prediction?.close, digits)}${moved}`);
  write("next-interval", prediction
    ? `${format.fixed(prediction.close_low, digits)} – ${format.fixed(prediction.close_high, digits)}` : "–");
  const horizon = prediction?.trend?.horizon;
  write("trend-label", isNumber(horizon) ? `Higher after ${horizon} candles` : "Trend");
  write("next-trend", format.percent(prediction?.trend?.p_up));
}

function renderOdds(prediction) {
  for (const row of find("odds").children) {
    const chance = prediction?.[`p_${row.dataset.direction}`];
    row.querySelector("i").style.transform = `scaleX(${isNumber(chance) ? Math.min(1, Math.max(0, chance)) : 0})`;
    row.querySelector(".value").textContent = format.percent(chance);
    row.toggleAttribute("data-called", prediction?.direction === row.dataset.direction);
  }
}

// The members of the mixture that count most.
export function renderMade(market) {
  const weights = Object.entries(market.predictions.last?.weights ?? {}).filter(([, weight]) => isNumber(weight));
  const most = weights.sort((a, b) => b[1] - a[1]).slice(0, MEMBERS);
  const list = find("made");
  while (list.children.length < most.length) list.append(madeRow());
  while (list.children.length > most.length) list.lastChild.remove();
  most.forEach(([name, weight], i) => {
    const [label, bar, value] = list.children[i].children;
    label.textContent = name;
    bar.firstChild.style.transform = `scaleX(${Math.min(1, Math.max(0, weight))})`;
    value.textContent = format.percent(weight);
  });
}

function madeRow() {
  const row = document.createElement("div");
  const bar = make("dd", "");
  bar.className = "bar";
  bar.append(document.createElement("i"));
  const value = make("dd", "");
  value.className = "value";
  row.append(make("dt", ""), bar, value);
  return row;
}

export function renderResults(market) {
  const judged = market.steps.items.filter((step) => typeof step.correct === "boolean").slice(-RESULTS);
  const strip = find("results");
  while (strip.children.length < RESULTS) strip.append(document.createElement("i"));
  const empty = RESULTS - judged.length;
  [...strip.children].forEach((cell, i) => {
    const step = judged[i - empty];
    cell.dataset.result = step === undefined ? "none" : step.correct ? "right" : "wrong";
    cell.title = step === undefined ? "" : `${format.clock(step.open_time)} ${step.correct ? "right" : "wrong"}`;
  });
  const right = judged.filter((step) => step.correct).length;
  strip.setAttribute("aria-label", judged.length ? `${right} of the last ${judged.length} right` : "No results yet");
  renderLast(judged[judged.length - 1], right, judged.length);
}

function renderLast(step, right, total) {
  const element = find("last-result");
  element.dataset.result = step === undefined ? "none" : step.correct ? "right" : "wrong";
  if (step === undefined) return void (element.textContent = "No result yet");
  const verdict = step.correct ? "✓ right" : "✗ wrong";
  const was = step.correct ? "" : `, it was ${withGlyph(step.label)}`;
  element.textContent = `${verdict}: called ${withGlyph(step.direction)}${was} · ${right} of ${total}`;
}

export function renderRecent(market) {
  const rows = market.steps.items.slice(-RECENT).reverse().map((step) => recentRow(market, step));
  find("recent-table").tBodies[0].replaceChildren(...rows);
}

function recentRow(market, step) {
  const digits = format.priceDigits(market.candles.items.slice(-50));
  const row = document.createElement("tr");
  const result = typeof step.correct === "boolean" ? (step.correct ? "right" : "wrong") : "none";
  const mark = { right: " ✓", wrong: " ✗", none: "" }[result];
  row.append(
    make("td", format.clock(step.open_time)),
    make("td", format.fixed(market.candles.at(step.open_time)?.close, digits)),
    make("td", format.fixed(market.predictions.at(step.open_time)?.close, digits)),
    make("td", `${withGlyph(step.direction)}${mark}`, { result }),
    make("td", withGlyph(step.label)),
    make("td", format.fixed(step.loss, 3)),
  );
  return row;
}

export function renderLearning(market) {
  const steps = market.steps.items.slice(-300);
  const last = market.steps.last;
  const trained = steps.filter((step) => isNumber(step.grad_norm));
  const clipped = trained.filter((step) => step.clipped).length;
  const skips = steps.filter((step) => step.skipped);
  const reasons = [...new Set(skips.map((step) => step.skipped))].join(", ");
  write("fact-step", format.count(last?.step ?? market.model?.step));
  write("fact-clipped", trained.length ? `${format.percent(clipped / trained.length, 0)} of ${trained.length}` : "–");
  write("fact-skipped", steps.length ? `${skips.length} of ${steps.length}${reasons ? ` (${reasons})` : ""}` : "–");
  write("fact-train-loss", format.significant(last?.train_loss, 4));
  write("fact-rate", format.significant(last?.learning_rate));
  write("fact-times", `${format.milliseconds(last?.infer_ms)} / ${format.milliseconds(last?.train_ms)}`);
  write("fact-lag", format.milliseconds(last?.lag_ms));
  write("fact-parameters", format.compact(market.model?.parameters));
  write("fact-device", [market.model?.device, market.model?.precision].filter((part) => typeof part === "string").join(" · ") || "–");
  write("fact-checkpoint", isNumber(market.status?.checkpoint_age_ms) ? `${format.duration(market.status.checkpoint_age_ms)} ago` : "–");
  const trainedNow = isNumber(last?.grad_norm);
  write("norm-before", trainedNow ? `before clipping ${format.significant(last.grad_norm)}` : "–");
  write("norm-after", trainedNow ? `after ${format.significant(last.grad_norm_clipped)}` : "");
}

// The baseline with the lowest log loss: {name, value}, or null.
export function bestBaseline(score) {
  let best = null;
  for (const [name, scores] of Object.entries(score?.baselines ?? {})) {
    const value = scores?.log_loss;
    if (isNumber(value) && (best === null || value < best.value)) best = { name, value };
  }
  return best;
}

const VERDICTS = {
  better: (best) => `Better than ${best}, the best of the simple ones.`,
  worse: (best) => `Worse than ${best}. Do not trust it.`,
  undecided: (best) => `Undecided: not yet told apart from ${best}.`,
};

export function renderScore(market) {
  const score = market.score;
  const best = bestBaseline(score);
  const verdict = find("verdict");
  verdict.dataset.verdict = VERDICTS[score?.verdict] ? score.verdict : "none";
  verdict.textContent = VERDICTS[score?.verdict] && best ? VERDICTS[score.verdict](best.name) : "Not scored yet";
  const rows = [scoreRow("Livewick", score?.model, null, "model")];
  for (const [name, scores] of Object.entries(score?.baselines ?? {})) {
    if (!isNumber(scores?.log_loss) && !isNumber(scores?.accuracy)) continue;
    rows.push(scoreRow(name, scores, score.skill?.[name], name === best?.name ? "best" : "other"));
  }
  find("score-table").tBodies[0].replaceChildren(...rows);
  write("score-note", scoreNote(score));
  const model = score?.model?.log_loss;
  write("loss-now", isNumber(model) ? `Livewick ${format.fixed(model, 3)}` : "–");
  write("loss-best", best ? `${best.name} ${format.fixed(best.value, 3)}` : "");
}

function scoreRow(name, scores, skill, kind) {
  const row = document.createElement("tr");
  row.dataset.kind = kind;
  const label = make("th", name);
  label.scope = "row";
  if (kind === "best") label.append(make("small", " best simple"));
  const gain = isNumber(skill) ? format.signed(skill * 100, 1) + " %" : kind === "model" ? "" : "–";
  row.append(label, make("td", format.percent(scores?.accuracy)), make("td", format.fixed(scores?.log_loss, 3)), make("td", gain));
  return row;
}

function scoreNote(score) {
  if (!score || !isNumber(score.candles)) return "Every forecaster is scored on the same candles, each before it was seen.";
  const [low, high] = score.accuracy_interval ?? [];
  const interval = isNumber(low) && isNumber(high)
    ? ` Accuracy lies in ${format.percent(low)} to ${format.percent(high)}, valid at every look.` : "";
  const share = ["up", "flat", "down"].map((way) => `${way} ${format.percent(score.share?.[way], 0)}`).join(", ");
  return `${format.count(score.candles)} candles: ${share}.${interval} Lower log loss is better; gain is how far below the baseline's.`;
}

export function renderEvents(market) {
  const list = find("events");
  if (!market.events.length) return void list.replaceChildren(make("li", "Nothing out of the ordinary.", { kind: "none" }));
  const rows = market.events.slice(-20).reverse().map((event) => {
    const row = document.createElement("li");
    row.append(make("time", format.clock(event.at)), make("strong", String(event.kind)), make("span", detailText(event.detail)));
    return row;
  });
  list.replaceChildren(...rows);
}

function detailText(detail) {
  if (detail === null || typeof detail !== "object") return "";
  return Object.entries(detail)
    .filter(([, value]) => ["string", "number", "boolean"].includes(typeof value))
    .map(([name, value]) => `${name.replaceAll("_", " ")}: ${readable(value)}`)
    .join(" · ");
}

function readable(value) {
  if (!isNumber(value)) return String(value);
  const isTime = Number.isInteger(value) && value > EARLIEST && value < LATEST;
  return isTime ? format.clock(value) : format.significant(value, 6);
}

export function renderMarkets(names, current) {
  const select = find("market");
  if (names.join() === [...select.options].map((option) => option.value).join()) return;
  select.replaceChildren(...names.map((name) => Object.assign(make("option", name), { value: name })));
  select.value = current;
  select.disabled = names.length < 2;
}

export function renderFeed(state, ageMs) {
  find("feed").dataset.state = state;
  write("feed-state", state);
  write("feed-age", isNumber(ageMs) ? format.duration(ageMs) : "");
}

// {level, text, simulated, done, total}; told to screen readers only when the words change.
export function renderStrip(strip) {
  find("strip").dataset.level = strip.level;
  find("strip").toggleAttribute("data-simulated", strip.simulated);
  find("main").toggleAttribute("data-outdated", strip.level === "bad");
  find("strip-tag").hidden = !strip.simulated;
  write("strip-text", strip.text);
  write("strip-detail", strip.detail ?? "");
  const progress = find("strip-progress");
  progress.hidden = strip.done === undefined;
  if (strip.done !== undefined) progress.value = strip.done;
}
