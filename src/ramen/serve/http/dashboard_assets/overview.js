/* The tiles at the top: what the whole service does now. */

/* How much a counter grew between two samples; null if the service was started anew in between. */
const growth = (field, now, before) => {
  if (!now || !before || now[field] < before[field]) return null;
  return now[field] - before[field];
};

/* Share of changed answers in the ten seconds up to a sample. */
const changedShare = (samples, place) => {
  const before = samples[Math.max(0, place - 10)];
  const images = growth("images", samples[place], before);
  return images ? growth("changed", samples[place], before) / images : null;
};

const field = (name) => (samples, place) => samples[place]?.[name] ?? null;
const percentile = (name, level) => (samples, place) => samples[place]?.[name]?.[level] ?? null;
const perSecond = (name) => (samples, place) => growth(name, samples[place], samples[place - 1]);
const LEVELS = ["p50", "p90", "p99"];

const percentiles = (name) => ({
  lines: LEVELS,
  values: LEVELS.map((level) => percentile(name, level)),
  format: milliseconds,
  text: (now) => LEVELS.map((level) => [milliseconds(now[name]?.[level]), level]),
});

const counter = (name) => ({
  values: [perSecond(name)],
  format: rate,
  text: (now) => [[whole(now[name]), "since the start"]],
  isBad: (samples) => samples.some((_, place) => perSecond(name)(samples, place) > 0),
});

/* values: one function per line; text: pairs of a number and a word; share: of a limit. */
const TILES = [
  {
    title: "Images per second",
    values: [field("images_per_second")],
    format: rate,
    text: (now) => [[rate(now.images_per_second), "in the last ten seconds"]],
  },
  { title: "Latency", ...percentiles("latency_ms") },
  {
    title: "Images per batch",
    values: [field("mean_batch")],
    format: rate,
    text: (now) => [[rate(now.mean_batch), limits.batch ? `of at most ${whole(limits.batch)}` : "on average"]],
  },
  { title: "Time per batch", ...percentiles("compute_ms") },
  {
    title: "Waiting images",
    values: [field("waiting_images")],
    format: whole,
    text: (now) => [[whole(now.waiting_images), `of at most ${whole(now.queue_images)}`]],
    share: (now) => now.waiting_images / now.queue_images,
  },
  {
    title: "Waiting bytes",
    values: [field("waiting_bytes")],
    format: bytes,
    floor: 1024,
    roundTop: roundUpBytes,
    text: (now) => [[bytes(now.waiting_bytes), `of at most ${bytes(now.queue_bytes)}`]],
    share: (now) => now.waiting_bytes / now.queue_bytes,
  },
  {
    title: "Streams in memory",
    values: [field("resident_streams")],
    format: whole,
    text: (now) => [[whole(now.resident_streams), `of ${count(now.streams, "stream")}`]],
    share: (now) => (now.streams ? now.resident_streams / now.streams : 0),
    isPlain: true,
  },
  {
    title: "Memory of streams",
    values: [field("resident_bytes")],
    format: bytes,
    floor: 1024,
    roundTop: roundUpBytes,
    text: (now) => [[bytes(now.resident_bytes), `of at most ${bytes(now.streams_budget)}`]],
    share: (now) => now.resident_bytes / now.streams_budget,
    isPlain: true,
  },
  {
    title: "Changed answers",
    values: [changedShare],
    format: (value) => (isNumber(value) ? `${rate(100 * value)}${GAP}%` : NONE),
    floor: 0.01,
    text: (now, samples) => {
      const all = now.images ? `${percent(now.changed / now.images)} since the start` : "no answers yet";
      return [[percent(changedShare(samples, samples.length - 1)), all]];
    },
  },
  { title: "Fallbacks to zero-shot", ...counter("fallbacks") },
  { title: "Refused: overloaded", ...counter("overloaded") },
  { title: "Expired: not in time", ...counter("expired") },
];

const limits = { batch: null };

class Tile {
  constructor(definition, number) {
    this.definition = definition;
    const id = `tile-${number}`;
    const names = definition.lines || [""];
    this.chart = new Chart({ ...definition, lines: names });
    this.pairs = names.map((name, place) => [
      make("strong", {}, NONE),
      make("span", { className: definition.lines ? `level level-${place}` : "soft" }, name),
    ]);
    this.value = make("p", { className: "value" }, ...this.pairs.map((pair) => make("span", {}, ...pair)));
    this.element = make(
      "section",
      { className: definition.lines ? "tile several" : "tile", "aria-labelledby": id },
      make("h3", { id }, definition.title),
      this.value,
    );
    if (definition.share) {
      this.meter = make("span", {});
      this.element.append(make("span", { className: "meter", "aria-hidden": "true" }, this.meter));
    }
    this.element.append(this.chart.element);
  }

  show(samples) {
    const { values, text, share, isBad, isPlain } = this.definition;
    const now = samples[samples.length - 1];
    text(now, samples).forEach(([number, word], place) => {
      setText(this.pairs[place][0], number);
      setText(this.pairs[place][1], word);
    });
    if (share) {
      const part = Math.min(1, share(now) || 0);
      this.meter.style.width = `${100 * part}%`;
      this.meter.classList.toggle("full", !isPlain && part > 0.9);
    }
    if (isBad) this.value.classList.toggle("bad", isBad(samples));
    this.chart.draw(values.map((value) => samples.map((_, place) => value(samples, place))));
  }
}

const overview = {
  samples: [], // one per second, null for seconds without one
  last: 0,

  start() {
    this.tiles = TILES.map((definition, number) => new Tile(definition, number));
    byId("tiles").append(...this.tiles.map((tile) => tile.element));
    document.addEventListener("visibilitychange", () => this.show());
  },

  async loadModel() {
    try {
      const model = await askJson("v1/model");
      const { name, method, classes, image_size: [height, width], device, dtype } = model;
      limits.batch = model.max_batch;
      setText(byId("model"), visible(name));
      document.title = `${visible(name)} – Ramen`;
      const facts = [`method ${method}`, count(classes.length, "class", "classes")];
      setText(byId("facts"), visible([...facts, `images of ${height} × ${width}`, `${device}, ${dtype}`].join(" · ")));
      this.show();
    } catch (error) {
      if (error.status !== 401) setText(byId("facts"), error.message);
    }
  },

  add(statistics) {
    const now = performance.now() / 1000;
    const missed = this.last ? Math.min(POINTS, Math.round(now - this.last) - 1) : 0;
    for (let second = 0; second < missed; second += 1) this.samples.push(null);
    this.last = now;
    this.samples.push(statistics);
    this.samples.splice(0, this.samples.length - POINTS);
    this.show();
  },

  show() {
    const now = this.samples[this.samples.length - 1];
    if (!now || document.visibilityState !== "visible") return;
    this.tiles.forEach((tile) => tile.show(this.samples));
    const facts = [
      `${count(now.images, "image")} in ${count(now.requests, "request")} since the start`,
      `${whole(now.undecodable)} not decodable`,
      `${count(now.cancelled, "request")} cancelled`,
      `${count(now.parked, "time")} a stream was put to disk`,
    ];
    setText(byId("counters"), facts.join(" · "));
    const failures = `${count(now.store_failures, "time")} a state could not be written to disk: see the log.`;
    setText(byId("now-message"), now.store_failures ? failures : "");
  },
};
