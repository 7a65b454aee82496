/* The service: requests, errors in words, the token, server-sent events. Addresses are relative to the page, so
   that it works behind a proxy that serves it under a path. */

const TOKEN = "ramen-token";
const WORDS = {
  400: "The service does not understand this",
  401: "The service asks for a token",
  403: "The token does not allow this",
  404: "There is no such thing here any more",
  409: "This cannot be done now",
  413: "This is too large",
  415: "The service does not read files of this kind",
  422: "The service cannot use this",
  429: "The service has too much to do",
  503: "The service cannot answer now",
  504: "The service did not answer in time, and learned nothing from it",
};

class ServiceError extends Error {
  constructor(status, message, retryAfter) {
    const words = WORDS[status] || (status ? `The service failed (${status})` : "The service cannot be reached");
    const wait = isNumber(retryAfter) ? ` Try again in ${count(Math.ceil(retryAfter), "second")}.` : "";
    super(visible((message ? `${words}: ${message.replace(/[.\s]+$/, "")}.` : `${words}.`) + wait));
    this.status = status;
  }
}

const refusal = async (response) => {
  let message = "";
  try {
    message = (await response.json()).error.message;
  } catch {
    message = ""; // a proxy answered in its own format
  }
  const after = Number.parseFloat(response.headers.get("Retry-After"));
  return new ServiceError(response.status, typeof message === "string" ? message : "", after);
};

/* Ask, and return the response; errors are ServiceErrors. */
const ask = async (path, options = {}) => {
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options, headers: { ...headers, ...options.headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServiceError(0, "");
  }
  if (response.ok) return response;
  const error = await refusal(response);
  if (response.status === 401) access.show(token);
  throw error;
};

const askJson = async (path, options) => {
  const response = await ask(path, options);
  return response.status === 204 ? null : response.json();
};

const streamPath = (name, action = "") => `v1/streams/${encodeURIComponent(name)}${action && `/${action}`}`;

/* The token: asked for when the service wants one, kept in this tab alone. */
const access = {
  onToken: () => {},

  start() {
    byId("access").addEventListener("submit", (event) => {
      event.preventDefault();
      const token = byId("token").value.trim();
      if (!token) return;
      sessionStorage.setItem(TOKEN, token);
      byId("token").value = "";
      byId("access").hidden = true;
      this.onToken();
      this.mark();
    });
    byId("forget-token").addEventListener("click", () => {
      sessionStorage.removeItem(TOKEN);
      location.reload(); // what was seen with it goes too
    });
    this.mark();
  },

  mark() {
    byId("forget-token").hidden = !sessionStorage.getItem(TOKEN);
  },

  /* Show the form, unless the token has changed since the request was sent. */
  show(sent) {
    if (sent !== sessionStorage.getItem(TOKEN)) return;
    const isNew = byId("access").hidden;
    sessionStorage.removeItem(TOKEN);
    this.mark();
    byId("access").hidden = false;
    if (!isNew) return;
    setText(byId("access-why"), sent ? "The service does not accept this token." : "The service asks for a token.");
    if (document.activeElement === document.body) byId("token").focus();
  },
};

/* Cut a stream of text into events: [name, data]. */
const makeEventParser = (onEvent) => {
  let rest = "";
  let name = "message";
  let data = [];
  const line = (text) => {
    if (text === "") {
      if (data.length) onEvent(name, data.join("\n"));
      name = "message";
      data = [];
      return;
    }
    const [, field, value] = /^([^:]*):? ?([^]*)$/.exec(text);
    if (field === "event") name = value;
    else if (field === "data") data.push(value);
  };
  return (text) => {
    const lines = (rest + text).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    lines.forEach(line);
  };
};

/* Statistics each second, for as long as the page is open. EventSource cannot send a token, so events are read from
   the body of an ordinary request. */
const live = {
  onStatistics: () => {},
  silence: 15_000, // ms without a byte after which a connection counts as lost
  waits: [1, 2, 4, 8, 16, 30], // seconds before each new attempt
  failures: 0,
  attempt: null,
  timer: null,

  start() {
    byId("reconnect").addEventListener("click", () => this.restart());
    addEventListener("online", () => this.restart());
    this.restart();
  },

  restart() {
    this.attempt?.abort();
    clearTimeout(this.timer);
    this.failures = 0;
    this.connect();
  },

  async connect() {
    const attempt = new AbortController();
    this.attempt = attempt;
    try {
      const response = await ask("v1/events", { signal: attempt.signal, headers: { Accept: "text/event-stream" } });
      await this.read(response.body.getReader(), attempt);
      throw new ServiceError(0, "");
    } catch (error) {
      if (this.attempt === attempt) this.lost(error);
    }
  },

  async read(reader, attempt) {
    const decoder = new TextDecoder();
    let watchdog = null;
    const parse = makeEventParser((name, data) => {
      if (name !== "statistics") return;
      this.failures = 0;
      this.say("live", "Live");
      this.onStatistics(JSON.parse(data));
    });
    try {
      for (;;) {
        watchdog = setTimeout(() => reader.cancel(), this.silence);
        const { done, value } = await reader.read();
        clearTimeout(watchdog);
        if (done || this.attempt !== attempt) return;
        parse(decoder.decode(value, { stream: true }));
      }
    } finally {
      clearTimeout(watchdog);
    }
  },

  lost(error) {
    setText(byId("now-message"), error.status && error.status !== 401 ? error.message : "");
    if (error.status === 401 || error.status === 403) {
      this.say("lost", error.status === 401 ? "Waiting for a token" : "No access to the figures");
      return;
    }
    const step = this.waits[Math.min(this.failures, this.waits.length - 1)];
    this.failures += 1;
    this.say("lost", "Connection lost");
    this.wait(step * (0.9 + 0.2 * Math.random())); // pages that lost one server do not come back all at once
  },

  wait(seconds) {
    const end = Date.now() + 1000 * seconds;
    const tick = () => {
      const left = Math.ceil((end - Date.now()) / 1000);
      setText(byId("connection-wait"), left > 0 ? `next try in ${left} s` : "trying again");
      if (left > 0) this.timer = setTimeout(tick, Math.min(1000, end - Date.now()));
      else this.connect();
    };
    byId("reconnect").hidden = false;
    tick();
  },

  say(state, words) {
    byId("connection").dataset.state = state;
    setText(byId("connection-state"), words);
    setText(byId("connection-wait"), "");
    byId("reconnect").hidden = true;
  },
};

/* Repeat a task every few seconds while the page is seen. The function that is returned does it at once, and counts
   the seconds from then. */
const makePoll = (task, seconds) => {
  let timer = null;
  let running = 0;
  const again = async () => {
    clearTimeout(timer);
    running += 1;
    const mine = running;
    if (document.visibilityState === "visible") await task();
    if (mine === running) timer = setTimeout(again, 1000 * seconds);
  };
  document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && again());
  return again;
};
