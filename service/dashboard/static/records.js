// What the page remembers of one market: bounded, each open_time once, in order.

import { isNumber } from "./format.js";

const KEEP = 1800;
const KEEP_EVENTS = 50;
const KEEP_BUCKETS = 720;

// Records by open_time, ascending; the oldest leave when there are more than KEEP.
export class Records {
  constructor(keep = KEEP) {
    this.keep = keep;
    this.items = [];
    this.times = new Map();
    // Changes when older items were put in, replaced or dropped, so that a chart cannot just append.
    this.generation = 0;
  }

  get last() {
    return this.items[this.items.length - 1] ?? null;
  }

  at(openTime) {
    return this.times.get(openTime) ?? null;
  }

  put(record) {
    if (!isNumber(record?.open_time)) return;
    const last = this.last;
    if (last === null || record.open_time > last.open_time) this.items.push(record);
    else this.insert(record);
    this.times.set(record.open_time, record);
    if (this.items.length > this.keep * 1.5) this.trim();
  }

  insert(record) {
    const place = this.find(record.open_time);
    const replaces = this.items[place]?.open_time === record.open_time;
    this.items.splice(place, replaces ? 1 : 0, record);
    if (place < this.items.length - 1) this.generation++;
  }

  find(openTime) {
    let low = 0;
    let high = this.items.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.items[middle].open_time < openTime) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  trim() {
    for (const record of this.items.splice(0, this.items.length - this.keep)) this.times.delete(record.open_time);
    this.generation++;
  }

  since(openTime) {
    return this.items.slice(this.find(openTime));
  }
}

export class Market {
  constructor(name) {
    this.name = name;
    this.candles = new Records();
    this.predictions = new Records();
    this.steps = new Records();
    this.series = new Records(KEEP_BUCKETS);
    this.rolling = new Records();
    this.events = [];
    this.score = null;
    this.status = null;
    this.model = null;
  }

  addEvent(event) {
    const key = JSON.stringify([event.kind, event.at, event.detail]);
    if (this.events.some((known) => known.key === key)) return;
    this.events.push({ ...event, key });
    this.events.sort((a, b) => a.at - b.at);
    if (this.events.length > KEEP_EVENTS) this.events.shift();
  }
}

// Means per bucket of the steps from `start` on, in the shape of GET /series.
export function bucketsOf(steps, bucketMs, start) {
  const buckets = new Map();
  for (const step of steps) {
    const openTime = Math.floor(step.open_time / bucketMs) * bucketMs;
    if (openTime < start) continue;
    const bucket = buckets.get(openTime) ?? { open_time: openTime, sums: {}, counts: {} };
    for (const field of ["loss", "grad_norm", "grad_norm_clipped"]) {
      if (!isNumber(step[field])) continue;
      bucket.sums[field] = (bucket.sums[field] ?? 0) + step[field];
      bucket.counts[field] = (bucket.counts[field] ?? 0) + 1;
    }
    buckets.set(openTime, bucket);
  }
  return [...buckets.values()].map(({ open_time, sums, counts }) => {
    const means = Object.keys(sums).map((field) => [field, sums[field] / counts[field]]);
    return { open_time, count: counts.loss ?? 0, ...Object.fromEntries(means) };
  });
}
