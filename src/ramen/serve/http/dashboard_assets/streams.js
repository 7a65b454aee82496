/* The list of streams: by name from the server, a page at a time; a click on a head sorts the page. */

const ROWS = 12;

const SORT_KEYS = {
  name: (info) => info.name,
  images: (info) => info.images,
  changed: (info) => (info.images ? info.changed / info.images : -1),
  used: (info) => info.last_used ?? -1,
};

const streamList = {
  starts: [""], // the name after which each page up to this one begins
  column: "name",
  order: "ascending",
  infos: [],
  following: null, // the name after which the next page begins
  rows: new Map(),

  start() {
    this.poll = makePoll(() => this.load(), 5);
    let typing = null;
    byId("prefix").addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(() => this.turn([""]), 200);
    });
    byId("previous").addEventListener("click", () => this.starts.length > 1 && this.turn(this.starts.slice(0, -1)));
    byId("next").addEventListener("click", () => {
      if (this.following) this.turn([...this.starts, this.following]);
    });
    document.querySelectorAll("#stream-table th").forEach((head) => {
      head.firstElementChild.addEventListener("click", () => this.sortBy(head));
    });
    this.poll();
  },

  turn(starts) {
    this.starts = starts;
    return this.poll();
  },

  async load() {
    const { starts } = this;
    const prefix = byId("prefix").value.trim();
    const query = new URLSearchParams({ limit: ROWS });
    if (starts[starts.length - 1]) query.set("after", starts[starts.length - 1]);
    if (prefix) query.set("prefix", prefix);
    try {
      const { streams, next } = await askJson(`v1/streams?${query}`);
      if (starts !== this.starts || prefix !== byId("prefix").value.trim()) return;
      if (!streams.length && starts.length > 1) {
        this.turn([""]); // the streams of this page were deleted
        return;
      }
      setText(byId("list-message"), "");
      this.following = next;
      this.infos = streams;
      this.show(prefix);
    } catch (error) {
      if (error.status !== 401) setText(byId("list-message"), error.message);
    }
  },

  sortBy(head) {
    const { column, kind } = head.dataset;
    const orders = kind === "number" ? ["descending", "ascending"] : ["ascending", "descending"];
    this.order = column === this.column && this.order === orders[0] ? orders[1] : orders[0];
    this.column = column;
    document.querySelectorAll("#stream-table th").forEach((other) => {
      other.setAttribute("aria-sort", other === head ? this.order : "none");
    });
    this.show(byId("prefix").value.trim());
  },

  show(prefix) {
    const key = SORT_KEYS[this.column];
    const sign = this.order === "ascending" ? 1 : -1;
    const compare = (a, b) => (a === b ? 0 : sign * (a < b ? -1 : 1));
    const infos = [...this.infos].sort((a, b) => compare(key(a), key(b)) || (a.name < b.name ? -1 : 1));
    const rows = infos.map((info) => this.fill(this.rows.get(info.name) || this.makeRow(info.name), info));
    this.rows = new Map(rows.map((row) => [row.dataset.stream, row]));
    const body = byId("stream-table").tBodies[0];
    if (rows.length !== body.rows.length || rows.some((row, place) => row !== body.rows[place])) {
      const focus = document.activeElement;
      body.replaceChildren(...rows);
      if (body.contains(focus)) focus.focus({ preventScroll: true });
    }
    this.showPlace(prefix);
    this.mark();
    selected.chooseFirst(infos);
  },

  showPlace(prefix) {
    const first = ROWS * (this.starts.length - 1);
    const total = overview.samples[overview.samples.length - 1]?.streams;
    const isAll = !prefix && isNumber(total) && total >= first + this.infos.length;
    const place = `${whole(first + 1)} to ${whole(first + this.infos.length)}${isAll ? ` of ${whole(total)}` : ""}`;
    setText(byId("place"), this.infos.length ? place : "");
    byId("previous").setAttribute("aria-disabled", String(this.starts.length === 1));
    byId("next").setAttribute("aria-disabled", String(!this.following));
    byId("stream-table").hidden = !this.infos.length;
    document.querySelector(".pages").hidden = !this.following && this.starts.length === 1;
    byId("no-streams").hidden = this.infos.length > 0;
    if (!this.infos.length) this.showNone(prefix);
  },

  showNone(prefix) {
    const address = new URL(streamPath("camera-1", "classify"), document.baseURI);
    const parts = prefix
      ? [make("p", {}, `No stream starts with ${shorten(visible(prefix))}.`)]
      : [
          make("p", {}, "There are no streams yet. A stream begins with its first image: try one below, or send one:"),
          make("p", {}, make("code", {}, `curl -F files=@image.jpg ${address}`)),
        ];
    byId("no-streams").replaceChildren(...parts);
  },

  makeRow(name) {
    const button = make("button", { type: "button", className: "name" }, nameOf(name));
    button.addEventListener("click", () => selected.choose(name, true));
    const cells = [0, 1, 2].map(() => make("td", { "data-kind": "number" }));
    const place = make("span", { className: "note" });
    return make("tr", { "data-stream": name }, make("th", { scope: "row" }, button, place), ...cells);
  },

  fill(row, info) {
    const [head, images, changed, used] = row.cells;
    setText(head.lastElementChild, info.resident ? `in memory, ${bytes(info.memory_bytes)}` : "on disk");
    setText(images, compact(info.images));
    images.title = whole(info.images);
    setText(changed, percent(info.images ? info.changed / info.images : null));
    setText(used, ago(info.last_used));
    return row;
  },

  mark() {
    for (const [name, row] of this.rows) {
      row.classList.toggle("current", name === selected.name);
      row.querySelector("button").setAttribute("aria-current", String(name === selected.name));
    }
  },
};
