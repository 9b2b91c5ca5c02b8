// The three charts. Without the library (not built) each says so and the page goes on.

import { isNumber, clock, priceDigits } from "./format.js";
import { ForecastSeries } from "./forecast.js";
import { Records } from "./records.js";

const LIBRARY = "/static/vendor/lightweight-charts/lightweight-charts.mjs";
const SMOOTH_BUCKETS = 10;
const MARKS = { gap: "gap", stale: "stale", recovered: "back", drift: "drift", restart: "restart", rollback: "rollback" };

export async function loadLibrary() {
  try {
    return await import(LIBRARY);
  } catch {
    return null;
  }
}

function palette() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  return {
    text: read("--muted"),
    line: read("--grid"),
    up: read("--up"),
    down: read("--down"),
    flat: read("--flat"),
    flame: read("--flame"),
    faint: read("--faint"),
    panel: read("--panel"),
    other: read("--other"),
    font: style.fontFamily,
  };
}

function chartOptions(library, colours) {
  return {
    autoSize: true,
    layout: {
      background: { type: library.ColorType.Solid, color: "transparent" },
      textColor: colours.text,
      fontFamily: colours.font,
      fontSize: 11,
      // Its logo brings an inline style that our content policy refuses; the credit is in the footer.
      attributionLogo: false,
    },
    grid: { vertLines: { color: colours.line }, horzLines: { color: colours.line } },
    rightPriceScale: { borderVisible: false, scaleMargins: { top: 0.12, bottom: 0.1 } },
    timeScale: { borderVisible: false, timeVisible: true, secondsVisible: true, rightOffset: 3 },
    crosshair: { mode: library.CrosshairMode.Normal },
    localization: { timeFormatter: (seconds) => `${clock(seconds * 1000)} UTC` },
    handleScroll: { vertTouchDrag: false },
  };
}

const seconds = (record) => record.open_time / 1000;

// Keeps one chart series equal to one Records: appends where it can, sets everything where it must.
class Mirror {
  constructor(series, toPoint) {
    this.series = series;
    this.toPoint = toPoint;
    this.drawn = null;
    this.source = null;
    this.generation = null;
  }

  sync(records) {
    const same = this.source === records && this.generation === records.generation && this.drawn !== null;
    if (same) this.append(records);
    else this.replace(records);
    this.source = records;
    this.generation = records.generation;
    this.drawn = records.last?.open_time ?? null;
  }

  append(records) {
    for (const record of records.since(this.drawn)) {
      const point = this.toPoint(record);
      if (point !== null) this.series.update(point);
    }
  }

  replace(records) {
    this.series.setData(records.items.map(this.toPoint).filter((point) => point !== null));
  }
}

export class PriceChart {
  constructor(library, element, onAway) {
    this.library = library;
    this.chart = library.createChart(element, chartOptions(library, palette()));
    this.forecast = this.chart.addCustomSeries(new ForecastSeries(), {});
    this.candles = this.chart.addSeries(library.CandlestickSeries, { priceLineVisible: false });
    this.marks = library.createSeriesMarkers(this.candles, [], { zOrder: "top" });
    this.mirrors = [new Mirror(this.candles, toCandle), new Mirror(this.forecast, toForecast)];
    this.digits = null;
    this.recolour();
    this.chart.timeScale().applyOptions({ barSpacing: 9 });
    this.chart.timeScale().subscribeVisibleLogicalRangeChange(() => onAway(this.chart.timeScale().scrollPosition() < -8));
  }

  toNow() {
    this.chart.timeScale().scrollToRealTime();
  }

  recolour() {
    const colours = palette();
    this.chart.applyOptions(chartOptions(this.library, colours));
    // Hollow where it rose, filled where it fell: readable without telling colours apart.
    this.candles.applyOptions({
      upColor: colours.panel,
      downColor: colours.down,
      borderUpColor: colours.up,
      borderDownColor: colours.down,
      wickUpColor: colours.up,
      wickDownColor: colours.down,
    });
    this.forecast.applyOptions({ color: colours.flame });
    this.markColour = colours.other;
  }

  draw(market) {
    const digits = priceDigits(market.candles.items.slice(-50));
    if (digits !== this.digits) {
      this.digits = digits;
      const priceFormat = { type: "price", precision: digits, minMove: 10 ** -digits };
      this.candles.applyOptions({ priceFormat });
      this.forecast.applyOptions({ priceFormat });
    }
    this.mirrors[0].sync(market.candles);
    this.mirrors[1].sync(market.predictions);
    this.mark(market);
  }

  mark(market) {
    const first = market.candles.items[0]?.open_time;
    const shown = market.events.filter((event) => MARKS[event.kind] && first !== undefined && event.at >= first);
    const key = JSON.stringify([first, shown.map((event) => [event.at, event.kind])]);
    if (key === this.marked) return;
    this.marked = key;
    this.marks.setMarkers(shown.map((event) => ({
      time: Math.floor(event.at / 1000),
      position: "aboveBar",
      shape: "arrowDown",
      color: this.markColour,
      text: MARKS[event.kind],
    })));
  }
}

function toCandle(candle) {
  const { open, high, low, close } = candle;
  if (![open, high, low, close].every(isNumber)) return null;
  return { time: seconds(candle), open, high, low, close };
}

function toForecast(prediction) {
  const { close, close_low: low, close_high: high } = prediction;
  if (![close, low, high].every(isNumber)) return null;
  return { time: seconds(prediction), close, low, high };
}

function toLine(field, positive = false) {
  return (record) => {
    const value = record[field];
    return isNumber(value) && (!positive || value > 0) ? { time: seconds(record), value } : null;
  };
}

class LineChart {
  constructor(library, element, lines, format) {
    this.library = library;
    const options = { ...chartOptions(library, palette()), handleScroll: false, handleScale: false };
    this.chart = library.createChart(element, options);
    this.chart.timeScale().applyOptions({ secondsVisible: false });
    this.lines = lines.map((line) => {
      const series = this.chart.addSeries(library.LineSeries, {
        lineWidth: line.width ?? 2,
        lineStyle: line.dashed ? library.LineStyle.Dashed : library.LineStyle.Solid,
        priceLineVisible: false,
        crosshairMarkerVisible: false,
        lastValueVisible: !line.quiet,
        priceFormat: format,
      });
      return { ...line, series, mirror: new Mirror(series, toLine(line.field, line.positive)) };
    });
    this.recolour();
  }

  recolour() {
    const colours = palette();
    this.chart.applyOptions({ ...chartOptions(this.library, colours), handleScroll: false, handleScale: false });
    this.chart.timeScale().applyOptions({ secondsVisible: false });
    for (const line of this.lines) line.series.applyOptions({ color: colours[line.colour] });
  }

  sync(sources) {
    this.lines.forEach((line, i) => line.mirror.sync(sources[i]));
    const last = sources[0].items.length;
    if (last > 1 && last !== this.fitted) {
      this.fitted = last;
      this.chart.timeScale().fitContent();
    }
  }
}

// The mean over the last few buckets: one bucket alone is mostly luck.
function smoothed(series) {
  const known = series.items.filter((item) => isNumber(item.loss));
  const smooth = new Records(known.length + 1);
  known.forEach((item, i) => {
    const last = known.slice(Math.max(0, i - SMOOTH_BUCKETS + 1), i + 1);
    const candles = last.reduce((sum, one) => sum + (one.count ?? 1), 0);
    const losses = last.reduce((sum, one) => sum + one.loss * (one.count ?? 1), 0);
    smooth.put({ open_time: item.open_time, loss: losses / candles });
  });
  return smooth;
}

export class LossChart extends LineChart {
  constructor(library, element) {
    const format = { type: "price", precision: 3, minMove: 0.001 };
    const lines = [
      { field: "loss", colour: "faint", width: 1, quiet: true },
      { field: "loss", colour: "flame" },
    ];
    super(library, element, lines, format);
    this.baseline = null;
    this.best = null;
    // The library scales to the line alone; the baseline to compare with has to be in sight too.
    this.lines[1].series.applyOptions({ autoscaleInfoProvider: (original) => this.include(original()) });
  }

  include(scale) {
    if (scale === null || this.best === null) return scale;
    const { minValue, maxValue } = scale.priceRange;
    const value = this.best.value;
    return { ...scale, priceRange: { minValue: Math.min(minValue, value), maxValue: Math.max(maxValue, value) } };
  }

  draw(market, best) {
    this.sync([market.series, smoothed(market.series)]);
    const key = best && `${best.name} ${best.value}`;
    if (key === this.key) return;
    this.key = key;
    this.best = best;
    const series = this.lines[1].series;
    if (this.baseline) series.removePriceLine(this.baseline);
    this.baseline = best && series.createPriceLine({
      price: best.value,
      color: palette().other,
      lineWidth: 1,
      lineStyle: this.library.LineStyle.Dashed,
      axisLabelVisible: true,
    });
  }
}

export class NormChart extends LineChart {
  constructor(library, element) {
    const lines = [
      { field: "grad_norm", colour: "other", positive: true, width: 4 },
      { field: "grad_norm_clipped", colour: "flame", positive: true },
    ];
    super(library, element, lines, { type: "price", precision: 3, minMove: 0.001 });
    this.chart.priceScale("right").applyOptions({ mode: library.PriceScaleMode.Logarithmic });
  }

  draw(market) {
    this.sync([market.series, market.series]);
  }
}

export function sayMissing(element) {
  const note = document.createElement("p");
  note.className = "missing";
  note.textContent = "The chart library is not installed here. Run “make” with network access to fetch it; the numbers below are live.";
  element.replaceChildren(note);
}
