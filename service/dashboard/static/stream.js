// Follows /ws for ever: reconnects with backoff and goes on after the last frame it saw.

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15_000;
const PING_MS = 10_000;
const SILENT_MS = 25_000;

export class Stream {
  // handlers: frame(frame), missed(), opened(), closed(waitMs). `missed` means: fetch by REST what is shown.
  constructor(api, handlers) {
    this.api = api;
    this.handlers = handlers;
    this.market = null;
    this.last = null;
    this.failures = 0;
    this.life = 0;
  }

  follow(market) {
    this.market = market;
    this.last = null;
    this.failures = 0;
    this.open();
  }

  async open() {
    const life = ++this.life;
    clearTimeout(this.timer);
    this.drop();
    let ticket;
    try {
      ticket = await this.api.ticket();
    } catch {
      if (life === this.life) this.again();
      return;
    }
    if (life === this.life) this.connect(life, ticket);
  }

  connect(life, ticket) {
    const query = new URLSearchParams({ market: this.market });
    if (this.last !== null) query.set("after", String(this.last));
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = new WebSocket(`${scheme}://${location.host}/ws?${query}`);
    this.socket = socket;
    socket.onopen = () => ticket && socket.send(JSON.stringify({ type: "auth", ticket }));
    socket.onmessage = (message) => life === this.life && this.receive(message.data);
    socket.onclose = () => life === this.life && this.again();
    this.heard = performance.now();
    this.pinger = setInterval(() => this.keepAlive(socket), PING_MS);
  }

  // A half-open connection never closes by itself: no answer to a ping in time means it is gone.
  keepAlive(socket) {
    if (performance.now() - this.heard > SILENT_MS) this.again();
    else if (socket.readyState === WebSocket.OPEN) socket.send('{"type":"ping"}');
  }

  receive(text) {
    this.heard = performance.now();
    let frame;
    try {
      frame = JSON.parse(text);
    } catch {
      console.warn("a frame was not JSON; fetching what it held");
      this.handlers.missed();
      return;
    }
    if (frame.type === "hello") this.greet(frame);
    else if (frame.type === "missed") this.miss(frame);
    else if (frame.type !== "pong") this.pass(frame);
  }

  greet(frame) {
    this.failures = 0;
    // A service that counts from an earlier number has forgotten ours: what came between is fetched.
    const continued = this.last !== null && frame.seq >= this.last;
    if (!continued) this.last = frame.seq;
    this.handlers.opened();
    if (!continued) this.handlers.missed();
  }

  miss(frame) {
    if (Number.isInteger(frame.to)) this.last = Math.max(this.last ?? 0, frame.to);
    this.handlers.missed();
  }

  pass(frame) {
    if (Number.isInteger(frame.seq)) {
      if (this.last !== null && frame.seq <= this.last) return;
      this.last = frame.seq;
    }
    this.handlers.frame(frame);
  }

  again() {
    this.life++;
    this.drop();
    const limit = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** this.failures);
    const wait = limit * (0.5 + Math.random() / 2);
    this.failures++;
    this.handlers.closed(wait);
    this.timer = setTimeout(() => this.open(), wait);
  }

  drop() {
    clearInterval(this.pinger);
    const socket = this.socket;
    this.socket = null;
    if (socket) {
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.close();
    }
  }
}
