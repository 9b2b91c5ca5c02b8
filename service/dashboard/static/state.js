// What to say about the market right now, from its status and from what the page itself sees.

import { count, isNumber } from "./format.js";

const STALE_INTERVALS = 5;
const LEAST_STALE_MS = 5000;

// Returns {level, text, feed, simulated, done?, detail?}: level is good, info, warn or bad; done is the warm-up share 0..1.
// A screen reader reads out `text` whenever it changes, so what counts from second to second stands in `detail`.
export function describe(market, link, ageMs, intervalMs) {
  const status = market?.status ?? null;
  const simulated = Boolean(status?.simulated || market?.predictions.last?.simulated);
  const said = { simulated, ...judge(status, link, ageMs, intervalMs) };
  if (simulated && said.level !== "bad") said.text = `These prices are made up by the built-in exchange. ${said.text}`;
  return said;
}

function judge(status, link, ageMs, intervalMs) {
  if (!link.open && link.since !== null) {
    return { level: "bad", feed: "offline", text: "No connection to the service. Trying again …" };
  }
  if (status === null) return { level: "info", feed: "starting", text: link.error ?? "Connecting to the service …" };
  if (status.phase === "warming_up") return warmUp(status);
  if (status.phase === "starting") return { level: "info", feed: "starting", text: status.reason || "Starting …" };
  if (status.phase === "stopped") return { level: "bad", feed: "stopped", text: status.reason || "Stopped." };
  if (status.phase === "stale") return { level: "bad", feed: "stale", text: status.reason || "The feed is stale." };
  if (isNumber(ageMs) && ageMs > Math.max(LEAST_STALE_MS, STALE_INTERVALS * intervalMs)) {
    return { level: "bad", feed: "stale", text: "No candle is coming. The forecast is out of date." };
  }
  return running(status);
}

function warmUp(status) {
  const { done, total } = status.warmup ?? {};
  if (!isNumber(total) || total <= 0) return { level: "info", feed: "warming up", text: status.reason || "Warming up …" };
  const text = "Warming up: learning from history first.";
  const detail = `${count(done)} of ${count(total)} candles`;
  return { level: "info", feed: "warming up", text, detail, done: Math.min(1, done / total) };
}

function running(status) {
  if (status.learner_alive === false) return { level: "warn", feed: "live", text: "The learner is being restarted from its checkpoint." };
  if (status.paused) return { level: "warn", feed: "live", text: "Learning is paused; predictions go on." };
  if (status.database_ok === false) {
    return { level: "warn", feed: "live", text: `The database is away; ${count(status.backlog)} records wait to be stored.` };
  }
  return { level: "good", feed: "live", text: "Every candle is predicted before it opens, then learned from." };
}
