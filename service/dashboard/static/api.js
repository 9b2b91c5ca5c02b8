// REST calls with the key, if one is needed. The key lives in this tab only.

const STORED = "livewick-key";

export class Unauthorized extends Error {}

export class Unavailable extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export class Api {
  constructor(askForKey) {
    this.askForKey = askForKey;
    this.key = sessionStorage.getItem(STORED);
  }

  // Answers parsed JSON. Throws Unavailable for any other status and when the service cannot be reached.
  async get(path, query = {}) {
    return this.call("GET", path, query);
  }

  async ticket() {
    return this.key ? (await this.call("POST", "/ws-ticket")).ticket : null;
  }

  async call(method, path, query = {}) {
    for (;;) {
      try {
        return await this.once(method, path, query);
      } catch (error) {
        if (!(error instanceof Unauthorized)) throw error;
        await this.renewKey();
      }
    }
  }

  async once(method, path, query) {
    const filled = Object.entries(query).filter(([, value]) => value !== null && value !== undefined);
    const search = new URLSearchParams(filled);
    const headers = this.key ? { Authorization: `Bearer ${bytesOf(this.key)}` } : {};
    const address = search.size ? `${path}?${search}` : path;
    const answer = await reach(address, { method, headers, cache: "no-store", signal: AbortSignal.timeout(15_000) });
    if (answer.status === 401) throw new Unauthorized();
    const body = await readJson(answer);
    if (!answer.ok) throw new Unavailable(answer.status, body?.detail ?? body?.title ?? `answer ${answer.status}`);
    if (body === null) throw new Unavailable(answer.status, "the answer was not JSON");
    return body;
  }

  // Several calls may find out at once that a key is needed; they share one question.
  async renewKey() {
    this.asking ??= this.askForKey(this.key !== null).finally(() => (this.asking = null));
    this.key = (await this.asking).trim();
    sessionStorage.setItem(STORED, this.key);
  }
}

// A header is bytes: a key beyond Latin-1 goes as its UTF-8, which is what the service compares.
function bytesOf(key) {
  return String.fromCharCode(...new TextEncoder().encode(key));
}

async function reach(address, options) {
  try {
    return await fetch(address, options);
  } catch {
    throw new Unavailable(0, "the service cannot be reached");
  }
}

async function readJson(answer) {
  try {
    return JSON.parse(await answer.text());
  } catch {
    return null;
  }
}
