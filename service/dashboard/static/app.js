// Starts the page: follows one market by WebSocket, fetches by REST what it needs, draws at most five times a second.

import { Api, Unavailable } from "./api.js";
import { LossChart, NormChart, PriceChart, loadLibrary, sayMissing } from "./charts.js";
import { Market, bucketsOf } from "./records.js";
import { describe } from "./state.js";
import { Stream } from "./stream.js";
import * as view from "./view.js";
import { isNumber } from "./format.js";

const DRAW_MS = 200;
const HISTORY = 1800;
const BUCKETS = 240;
const BUCKET_CANDLES = 30;
const PAGES = 5;
// What was told shortly before the socket opened may reach the database only this much later.
const STORED_AFTER_MS = 2500;
const TAIL = 120;
const FIRST_FRAME_MS = 3000;

const page = {
  market: null,
  names: [],
  intervalMs: 1000,
  link: { open: false, since: null, error: null },
  age: { ms: null, at: 0 },
  score: { window: "3600", live: false },
  charts: null,
  drawn: {},
};

const find = (id) => document.getElementById(id);
const api = new Api(askForKey);
const stream = new Stream(api, { frame: take, missed: reload, opened, closed });

async function start() {
  bindControls();
  setInterval(draw, DRAW_MS);
  startCharts();
  await pollMarkets();
}

async function startCharts() {
  const library = await loadLibrary();
  const places = ["price-chart", "loss-chart", "norm-chart"].map(find);
  if (library === null) return places.forEach(sayMissing);
  page.charts = {
    price: new PriceChart(library, places[0], (away) => (find("to-now").hidden = !away)),
    loss: new LossChart(library, places[1]),
    norm: new NormChart(library, places[2]),
  };
}

// --- what comes in ---------------------------------------------------------------------------------------------------

async function pollMarkets() {
  try {
    await askMarkets();
  } finally {
    setTimeout(pollMarkets, page.market?.status?.phase === "live" ? 5000 : 1000);
  }
}

async function askMarkets() {
  try {
    readMarkets(await api.get("/markets"));
  } catch (error) {
    if (!(error instanceof Unavailable)) throw error;
    page.link.error = `Not ready: ${error.message}`;
  }
}

function readMarkets(answer) {
  const items = answer.markets;
  page.names = items.map((item) => item.market);
  page.link.error = items.length ? null : "The service is starting; it follows no market yet.";
  // Which exchange it is may be decided late, or anew after a restart.
  if (items.length && !page.names.includes(page.market?.name)) choose(items[0].market);
  view.renderMarkets(page.names, page.market?.name);
  const status = items.find((item) => item.market === page.market?.name);
  if (status === undefined) return;
  page.market.status = status;
  if (isNumber(status.interval_ms)) page.intervalMs = status.interval_ms;
  if (isNumber(status.feed?.age_ms)) setAge(status.feed.age_ms);
}

function choose(name) {
  page.market = new Market(name);
  page.age = { ms: null, at: 0 };
  page.drawn = {};
  stream.follow(name);
}

function setAge(ms) {
  page.age = { ms, at: performance.now() };
}

function opened() {
  // After a restart much may be different: known at once, not at the next turn.
  if (page.link.since !== null) askMarkets();
  page.link.open = true;
  page.link.since = performance.now();
}

function closed() {
  page.link.open = false;
}

function take(frame) {
  const market = page.market;
  if (market === null || frame.market !== market.name) return;
  if (frame.type === "prediction") {
    if (frame.candle) market.candles.put(frame.candle);
    if (frame.prediction) market.predictions.put(frame.prediction);
    if (frame.candle?.source !== "backfill") setAge(0);
  } else if (frame.type === "step" && frame.step) {
    market.steps.put(frame.step);
    freshenSeries(market);
  } else if (frame.type === "event") {
    market.addEvent({ kind: frame.kind, detail: frame.detail ?? {}, at: frame.at ?? market.candles.last?.open_time ?? Date.now() });
  }
}

// The last buckets come from the steps at hand, wherever those cover them whole.
function freshenSeries(market) {
  const bucketMs = BUCKET_CANDLES * page.intervalMs;
  const newest = Math.floor(market.steps.last.open_time / bucketMs) * bucketMs;
  const covered = Math.ceil(market.steps.items[0].open_time / bucketMs) * bucketMs;
  const start = Math.max(covered, newest - bucketMs);
  for (const bucket of bucketsOf(market.steps.since(start), bucketMs, start)) market.series.put(bucket);
}

// --- what is fetched -------------------------------------------------------------------------------------------------

// One reload at a time; one asked for meanwhile follows it, so that nothing that was missed stays missing.
async function reload() {
  if (page.loading) return void (page.loadAgain = true);
  page.loading = true;
  try {
    do {
      page.loadAgain = false;
      await load(page.market);
    } while (page.loadAgain);
  } catch (error) {
    if (!(error instanceof Unavailable)) throw error;
    setTimeout(reload, 2000);
  } finally {
    page.loading = false;
  }
}

async function load(market) {
  const newest = await newestLearned(market);
  const first = isNumber(newest) ? newest - HISTORY * page.intervalMs : null;
  const bucket = (BUCKET_CANDLES * page.intervalMs) / 1000;
  const fields = "loss,grad_norm,grad_norm_clipped";
  const since = isNumber(newest) ? newest - BUCKETS * bucket * 1000 : null;
  const [series] = await Promise.all([
    api.get("/series", { market: market.name, fields, bucket, start: since }),
    loadRecords(market, first),
  ]);
  series.items.forEach((item) => market.series.put(item));
  if (market.steps.last) freshenSeries(market);
  clearTimeout(page.tail);
  page.tail = setTimeout(() => loadTail(market), STORED_AFTER_MS);
  await Promise.all([loadScore(), loadModel(), loadEvents(market, first)]);
}

// While history is being learned, the feed is far ahead of it: then the first frame tells how far it is.
async function newestLearned(market) {
  const deadline = performance.now() + FIRST_FRAME_MS;
  while (market.candles.last === null && market.status?.phase === "warming_up" && performance.now() < deadline) {
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return market.candles.last?.open_time ?? market.status?.feed?.last_open_time;
}

async function loadRecords(market, start) {
  const query = { market: market.name, start };
  const kinds = { "/candles": market.candles, "/predictions": market.predictions, "/steps": market.steps };
  const loads = Object.entries(kinds).map(async ([path, records]) => {
    for (const record of await all(path, query)) records.put(record);
  });
  await Promise.all(loads);
}

async function loadTail(market) {
  const newest = market.candles.last?.open_time;
  if (isNumber(newest)) await quietly(loadRecords(market, newest - TAIL * page.intervalMs));
}

async function all(path, query) {
  const items = [];
  let cursor = null;
  for (let i = 0; i < PAGES; i++) {
    const answer = await api.get(path, { ...query, limit: 2000, cursor });
    items.push(...answer.items);
    cursor = answer.next;
    if (!cursor) break;
  }
  return items;
}

async function loadScore() {
  const market = page.market;
  const { window, live } = page.score;
  const score = await quietly(api.get("/score", { market: market.name, window, live: live ? "true" : null }));
  if (score !== null && window === page.score.window && live === page.score.live) market.score = score;
}

async function loadModel() {
  const market = page.market;
  market.model = (await quietly(api.get("/model", { market: market.name }))) ?? market.model;
}

async function loadEvents(market, start) {
  const answer = await quietly(api.get("/events", { market: market.name, start }));
  for (const event of answer?.items ?? []) market.addEvent(event);
}

// For what the page can do without for a while: null when the service cannot answer now.
async function quietly(request) {
  try {
    return await request;
  } catch (error) {
    if (!(error instanceof Unavailable)) throw error;
    return null;
  }
}

// --- what is drawn ---------------------------------------------------------------------------------------------------

function draw() {
  const market = page.market;
  const ageMs = isNumber(page.age.ms) ? page.age.ms + performance.now() - page.age.at : null;
  const said = describe(market, page.link, ageMs, page.intervalMs);
  view.renderStrip(said);
  view.renderFeed(said.feed, ageMs);
  if (market === null) return;
  once("next", [market.predictions.last, market.candles.last, market.status?.phase], () => {
    view.renderNext(market);
    view.renderMade(market);
  });
  once("steps", [market.steps.last, market.steps.generation, market.model, market.status], () => {
    view.renderResults(market);
    view.renderRecent(market);
    view.renderLearning(market);
  });
  once("score", [market.score], () => view.renderScore(market));
  once("events", [market.events.length, market.events.at(-1)], () => view.renderEvents(market));
  if (page.charts !== null) drawCharts(market);
}

function drawCharts(market) {
  const { price, loss, norm } = page.charts;
  const shown = [market.candles.last, market.candles.generation, market.predictions.last, market.predictions.generation];
  once("price", [...shown, market.events.length], () => price.draw(market));
  once("loss", [market.series.last, market.series.generation, market.score], () => loss.draw(market, view.bestBaseline(market.score)));
  once("norm", [market.series.last, market.series.generation], () => norm.draw(market));
}

// Calls `render` only when one of the values is not the one it was drawn with.
function once(name, values, render) {
  const before = page.drawn[name];
  if (before && values.every((value, i) => value === before[i])) return;
  page.drawn[name] = values;
  render();
}

// --- what people do --------------------------------------------------------------------------------------------------

function bindControls() {
  find("market").addEventListener("change", (event) => choose(event.target.value));
  find("to-now").addEventListener("click", () => page.charts?.price.toNow());
  find("theme").addEventListener("click", switchTheme);
  find("live-only").addEventListener("change", (event) => rescore({ live: event.target.checked }));
  for (const button of document.querySelectorAll("[data-window]")) {
    button.addEventListener("click", () => rescore({ window: button.dataset.window }));
  }
  applyTheme(localStorage.getItem("livewick-theme"));
  setInterval(() => page.market && loadScore(), 10_000);
  setInterval(() => page.market && loadModel(), 30_000);
}

function rescore(change) {
  Object.assign(page.score, change);
  for (const button of document.querySelectorAll("[data-window]")) {
    button.setAttribute("aria-pressed", String(button.dataset.window === page.score.window));
  }
  if (page.market) loadScore();
}

function switchTheme() {
  const light = getComputedStyle(document.documentElement).getPropertyValue("--scheme").trim() === "light";
  applyTheme(light ? "dark" : "light");
  localStorage.setItem("livewick-theme", light ? "dark" : "light");
}

function applyTheme(name) {
  if (name === "dark" || name === "light") document.documentElement.dataset.theme = name;
  for (const chart of Object.values(page.charts ?? {})) chart.recolour();
}

function askForKey(wasWrong) {
  const dialog = find("key-dialog");
  find("key-wrong").hidden = !wasWrong;
  find("key").value = "";
  if (!dialog.open) dialog.showModal();
  return new Promise((resolve) => {
    find("key-form").addEventListener("submit", () => resolve(find("key").value), { once: true });
    dialog.addEventListener("cancel", (event) => event.preventDefault());
  });
}

matchMedia("(prefers-color-scheme: light)").addEventListener("change", () => applyTheme(null));
start();
