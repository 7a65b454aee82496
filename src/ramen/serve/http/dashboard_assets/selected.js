/* The selected stream: what adaptation does to it, and what an operator can do with it. */

const FIRST_CARDS = 6;

const ACTIONS = {
  snapshot: {
    run: (name) => askJson(streamPath(name, "snapshot"), { method: "POST" }),
    done: (name) => `Everything that ${name} has learned is on disk.`,
  },
  reset: {
    run: (name) => askJson(streamPath(name, "reset"), { method: "POST" }),
    title: (name) => `Reset ${name}?`,
    text: (name) => `The stream ${name} forgets everything that it has learned. Its classes stay.`,
    verb: "Reset",
    done: (name) => `${name} has forgotten what it had learned.`,
  },
  delete: {
    run: (name) => ask(streamPath(name), { method: "DELETE" }),
    title: (name) => `Delete ${name}?`,
    text: (name) =>
      `The stream ${name} and everything that it has learned are removed, on disk too. This cannot be undone.`,
    verb: "Delete",
    done: (name) => `${name} is deleted.`,
  },
};

/* Ask before something is lost. The browser keeps the rest of the page out of reach and gives the focus back. */
const confirmAction = ({ title, text, verb }, name) => {
  const dialog = byId("confirm");
  setText(byId("confirm-title"), title(visible(name)));
  setText(byId("confirm-text"), text(visible(name)));
  setText(byId("confirm-yes"), verb);
  dialog.returnValue = "";
  dialog.showModal();
  byId("confirm-no").focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
};

const startDialog = () => {
  const dialog = byId("confirm");
  const buttons = [byId("confirm-no"), byId("confirm-yes")];
  byId("confirm-no").addEventListener("click", () => dialog.close(""));
  byId("confirm-yes").addEventListener("click", () => dialog.close("yes"));
  dialog.addEventListener("keydown", (event) => {
    if (event.key !== "Tab") return;
    event.preventDefault(); // two buttons: either way it is the other one
    buttons[1 - Math.max(0, buttons.indexOf(document.activeElement))].focus();
  });
};

const failuresOf = ({ fallbacks, errors }) => {
  const parts = [];
  if (fallbacks) parts.push(`${whole(fallbacks)} fell back to zero-shot`);
  if (errors) parts.push(`${whole(errors)} not decodable`);
  return parts.join(", ") || "none failed";
};

const memoryOf = ({ entries, capacity, resident }) => {
  if (!isNumber(entries) || !capacity) return ["Memory", NONE, resident ? "the method keeps none" : "it is on disk"];
  return ["Memory", percent(entries / capacity), `${whole(entries)} of ${whole(capacity)} entries`, entries / capacity];
};

const accuracyOf = ({ feedback, accuracy, zero_shot_accuracy: zeroShot }) => {
  if (!feedback.labels) return ["Accuracy", NONE, "no true labels were sent"];
  return ["Accuracy", percent(accuracy), `zero-shot ${percent(zeroShot)}, ${count(feedback.labels, "true label")}`];
};

const selected = {
  name: null,
  isBusy: false,
  showsAll: false, // or only the first of the changed images
  shownImages: "",
  shownMix: "",

  start() {
    startDialog();
    document.querySelectorAll("[data-action]").forEach((button) => {
      button.addEventListener("click", () => this.act(button.dataset.action));
    });
    byId("all-changed").addEventListener("click", () => {
      this.showsAll = true;
      this.poll();
    });
    addEventListener("hashchange", () => this.readAddress());
    this.poll = makePoll(() => this.load(), 3);
    this.readAddress();
  },

  readAddress() {
    const found = /^#stream=(.+)$/.exec(location.hash);
    if (!found) return;
    try {
      this.choose(decodeURIComponent(found[1]));
    } catch {
      history.replaceState(null, "", "#"); // somebody typed half an escape
    }
  },

  /* A page that was opened without a name shows the stream that was used last. */
  chooseFirst(infos) {
    if (this.name !== null || this.hasChosen || !infos.length) return;
    this.choose(infos.reduce((best, info) => (SORT_KEYS.used(info) > SORT_KEYS.used(best) ? info : best)).name);
  },

  choose(name, isAsked = false) {
    this.hasChosen = true;
    if (isAsked) {
      const box = byId("selected").getBoundingClientRect();
      const isSeen = box.top < innerHeight - 120;
      if (!isSeen) byId("selected").scrollIntoView({ behavior: isCalm() ? "auto" : "smooth", block: "start" });
    }
    if (name === this.name) return undefined;
    this.name = name;
    this.showsAll = false;
    if (isAsked) history.replaceState(null, "", `#stream=${encodeURIComponent(name)}`);
    setText(byId("selected-message"), "");
    setText(byId("selected-outcome"), isAsked ? "" : byId("selected-outcome").textContent);
    byId("selected-title").replaceChildren(nameOf(name));
    setText(byId("selected-facts"), "Loading");
    byId("selected-recovered").hidden = true;
    byId("selected-body").hidden = true;
    streamList.mark();
    trying.offerSelected();
    return this.poll();
  },

  clear(outcome) {
    this.name = null;
    history.replaceState(null, "", "#");
    setText(byId("selected-title"), "No stream is selected");
    setText(byId("selected-facts"), "Select a stream to see what adaptation does to it.");
    setText(byId("selected-outcome"), outcome);
    byId("selected-recovered").hidden = true;
    byId("selected-body").hidden = true;
    streamList.mark();
    trying.offerSelected();
  },

  async load() {
    const { name } = this;
    if (name === null) return;
    try {
      const [info, activity] = await Promise.all([askJson(streamPath(name)), askJson(streamPath(name, "activity"))]);
      if (name === this.name) this.show(info, activity);
    } catch (error) {
      if (name !== this.name || error.status === 401) return;
      if (error.status === 404) this.clear(`There is no stream ${visible(name)} (any more).`);
      else setText(byId("selected-facts"), error.message);
    }
  },

  show(info, activity) {
    const facts = [
      `method ${info.method}`,
      count(info.classes.length, "class", "classes"),
      info.resident ? `in memory, ${bytes(info.memory_bytes)}` : "on disk",
      `used ${ago(info.last_used)}`,
      `created ${moment(info.created)}`,
    ];
    setText(byId("selected-facts"), visible(facts.join(" · ")));
    byId("selected-recovered").hidden = !info.recovered;
    setText(byId("selected-recovered"), info.recovered ? `Repaired when it was read: ${visible(info.recovered)}` : "");
    this.showNumbers(info, activity);
    this.showMix(activity.class_mix, activity.answers);
    this.showChanged(activity);
    byId("selected-body").hidden = false;
  },

  showNumbers(info, activity) {
    const entropy = (value) => (isNumber(value) ? digits(value, 2) : NONE);
    const tiles = [
      ["Images answered", whole(info.images), failuresOf(info)],
      ["Labels changed", percent(activity.changed_share), "of the last answers"],
      ["Mean entropy", `${entropy(activity.zero_shot_entropy)} → ${entropy(activity.entropy)}`, "before → after, in nats"],
      memoryOf(info),
      accuracyOf(info),
    ];
    const list = byId("numbers");
    while (list.children.length < tiles.length) {
      const meter = make("span", { className: "meter", "aria-hidden": "true" }, make("span", {}));
      const large = make("dd", {}, make("span", {}), meter);
      list.append(make("div", {}, make("dt", {}), large, make("dd", { className: "note" })));
    }
    tiles.forEach(([title, value, note, share], place) => {
      const [head, large, small] = list.children[place].children;
      const [number, meter] = large.children;
      setText(head, title);
      setText(number, value);
      setText(small, note);
      meter.hidden = !isNumber(share);
      meter.firstElementChild.style.width = `${100 * Math.min(1, share || 0)}%`;
    });
  },

  showMix(mix, answers) {
    const now = JSON.stringify([mix, answers]);
    if (now === this.shownMix) return;
    this.shownMix = now;
    const most = Math.max(1, ...mix.map(([, times]) => times));
    const rows = mix.map(([label, times]) =>
      make("li", {}, bar("after", label, times / most, `${whole(times)} · ${percent(times / answers)}`)),
    );
    byId("mix").replaceChildren(...(rows.length ? rows : [make("li", { className: "soft" }, "No answers yet.")]));
  },

  showChanged({ changed_images: images, changed_share: share }) {
    const isOff = !images.length && share > 0;
    const off = "Not kept: start the service with --keep-changed to see these images here.";
    setText(byId("changed-note"), images.length ? "" : isOff ? off : "None among the last answers.");
    const shown = images.slice(0, this.showsAll ? images.length : FIRST_CARDS);
    const now = JSON.stringify([this.name, shown.map((image) => [image.key, image.time, image.label])]);
    if (now === this.shownImages) return;
    this.shownImages = now;
    byId("changed").replaceChildren(...shown.map((image) => this.makeCard(image)));
    byId("all-changed").hidden = shown.length === images.length;
    setText(byId("all-changed"), `Show all ${whole(images.length)}`);
  },

  makeCard(image) {
    const when = make("time", { dateTime: new Date(1000 * image.time).toISOString() }, moment(image.time));
    const file = make("p", { className: "file", title: visible(image.key) }, nameOf(image.key), when);
    const source = /^[A-Za-z0-9+/=]+$/.test(image.thumbnail) ? `data:image/jpeg;base64,${image.thumbnail}` : "data:,";
    return make(
      "li",
      {},
      make("div", { className: "thumbnail" }, make("img", { src: source, alt: "", loading: "lazy" })),
      bar("before", image.zero_shot_label, image.zero_shot_probability, percent(image.zero_shot_probability), "before"),
      bar("after", image.label, image.probability, percent(image.probability), "after"),
      file,
    );
  },

  async act(action) {
    const { name } = this;
    if (name === null || this.isBusy) return;
    const { run, done, title } = ACTIONS[action];
    if (title && !(await confirmAction(ACTIONS[action], name))) return;
    this.setBusy(true);
    byId("selected-message").className = "message";
    try {
      await run(name);
      if (name !== this.name) return;
      if (action === "delete") this.clear(done(visible(name)));
      else setText(byId("selected-message"), done(visible(name)));
      this.poll();
      streamList.poll();
    } catch (error) {
      byId("selected-message").className = "message bad";
      setText(byId("selected-message"), error.message);
    } finally {
      this.setBusy(false);
    }
  },

  setBusy(isBusy) {
    this.isBusy = isBusy;
    document.querySelectorAll("[data-action]").forEach((button) => button.setAttribute("aria-disabled", String(isBusy)));
  },
};
