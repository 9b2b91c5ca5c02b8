// Numbers and times as people read them. Everything takes null and gives a dash.

export const GLYPHS = { up: "▲", flat: "▬", down: "▼" };

const DASH = "–";

export function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

export function fixed(value, digits) {
  if (!isNumber(value)) return DASH;
  return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export function percent(value, digits = 1) {
  return isNumber(value) ? `${(value * 100).toFixed(digits)} %` : DASH;
}

export function signed(value, digits) {
  if (!isNumber(value)) return DASH;
  const text = fixed(Math.abs(value), digits);
  return `${value < 0 ? "−" : "+"}${text}`;
}

export function significant(value, digits = 3) {
  if (!isNumber(value)) return DASH;
  if (value !== 0 && (Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3)) return value.toExponential(digits - 1);
  return Number(value.toPrecision(digits)).toLocaleString("en-US", { maximumSignificantDigits: digits });
}

export function count(value) {
  return isNumber(value) ? Math.round(value).toLocaleString("en-US") : DASH;
}

export function compact(value) {
  return isNumber(value) ? value.toLocaleString("en-US", { notation: "compact", maximumFractionDigits: 1 }) : DASH;
}

export function clock(openTime) {
  return isNumber(openTime) ? new Date(openTime).toISOString().slice(11, 19) : DASH;
}

export function milliseconds(value) {
  if (!isNumber(value)) return DASH;
  return value < 10 ? `${value.toFixed(1)} ms` : value < 10_000 ? `${Math.round(value)} ms` : `${Math.round(value / 1000)} s`;
}

export function duration(ms) {
  if (!isNumber(ms)) return DASH;
  const seconds = Math.max(0, ms) / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

// The finest decimal place seen in these prices, as the exchange quotes them.
export function priceDigits(candles) {
  let digits = 2;
  for (const candle of candles) {
    const text = String(candle.close);
    const dot = text.indexOf(".");
    if (dot >= 0 && !text.includes("e")) digits = Math.max(digits, text.length - dot - 1);
  }
  return Math.min(digits, 8);
}
