/* Try an image: drop it, paste it, or choose a file. */

const DEFAULT_STREAM = "dashboard";
const SHOWN_ANSWERS = 6;

const trying = {
  waiting: Promise.resolve(),

  start() {
    byId("choose").addEventListener("click", () => byId("file").click());
    byId("file").addEventListener("change", () => {
      this.send([...byId("file").files]);
      byId("file").value = ""; // the same file may be chosen again
    });
    byId("try-stream").addEventListener("input", () => this.offerSelected());
    byId("try-selected").addEventListener("click", () => {
      byId("try-stream").value = selected.name ?? DEFAULT_STREAM;
      byId("try-stream").focus();
      this.offerSelected();
    });
    document.addEventListener("paste", (event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (!files.length) return;
      event.preventDefault();
      byId("try").scrollIntoView({ behavior: isCalm() ? "auto" : "smooth", block: "start" });
      this.send(files);
    });
    this.startDropping();
    this.offerSelected();
  },

  startDropping() {
    const zone = byId("drop");
    const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
    for (const kind of ["dragenter", "dragover"]) {
      addEventListener(kind, (event) => {
        if (!hasFiles(event)) return;
        event.preventDefault(); // a file that misses the zone must not replace the page
        const isInside = zone.contains(event.target);
        event.dataTransfer.dropEffect = isInside ? "copy" : "none";
        zone.classList.toggle("over", isInside);
      });
    }
    addEventListener("dragleave", (event) => event.relatedTarget === null && zone.classList.remove("over"));
    addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      zone.classList.remove("over");
      if (zone.contains(event.target)) this.send([...event.dataTransfer.files]);
    });
  },

  offerSelected() {
    const name = byId("try-stream").value.trim();
    const own = name === DEFAULT_STREAM;
    const other = own ? selected.name : DEFAULT_STREAM;
    const offer = byId("try-selected");
    offer.hidden = other === null || other === name;
    setText(offer, `Use ${visible(other ?? "")}`);
    const note = own
      ? "It is there for trying, so that the streams in use are not touched."
      : name === selected.name
        ? "Its later answers may change."
        : "It is created if it does not exist.";
    setText(byId("try-note"), `The stream ${visible(name) || "of this name"} learns from the image. ${note}`);
    byId("try-note").classList.toggle("bad", !own);
  },

  say(words, isBad = false) {
    byId("try-message").className = isBad ? "message bad" : "message";
    setText(byId("try-message"), words);
  },

  /* One after the other, in the order in which they came. */
  send(files) {
    const stream = byId("try-stream").value.trim();
    if (!/^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/.test(stream)) {
      const rule = "at most 64 letters, digits, dots, dashes and underscores, and begins with a letter or digit";
      this.say(`A stream's name has ${rule}.`, true);
      byId("try-stream").focus();
      return;
    }
    for (const file of files) this.waiting = this.waiting.then(() => this.classify(stream, file));
  },

  async classify(stream, file) {
    const body = new FormData();
    body.append("files", file, file.name || "pasted");
    const name = visible(file.name || "pasted image");
    this.say(`Sending ${shorten(name)}`);
    try {
      const { answers } = await askJson(streamPath(stream, "classify"), { method: "POST", body });
      const [answer] = answers;
      if (answer.error) {
        this.say(`${shorten(name)}: ${visible(answer.error)}`, true);
        return;
      }
      this.show(stream, file, answer);
      const before = answer.changed ? `changed from ${answer.zero_shot_label}` : "the same without adaptation";
      this.say(visible(`${shorten(name)}: ${shorten(answer.label)}, ${percent(answer.probability)}; ${before}`));
    } catch (error) {
      this.say(`${shorten(name)}: ${error.message}`, true);
      return;
    }
    streamList.poll();
    if (stream === selected.name) selected.poll();
    else if (selected.name === null) selected.choose(stream);
  },

  show(stream, file, answer) {
    byId("no-answers").hidden = true;
    const list = byId("answers");
    list.prepend(this.makeAnswer(stream, file, answer));
    while (list.children.length > SHOWN_ANSWERS) {
      URL.revokeObjectURL(list.lastElementChild.querySelector("img")?.src ?? "");
      list.lastElementChild.remove();
    }
  },

  makeAnswer(stream, file, answer) {
    const image = make("img", { src: URL.createObjectURL(file), alt: "" });
    image.addEventListener("error", () => image.replaceWith(make("span", { className: "soft" }, "no preview")));
    const zeroShot = [nameOf(answer.zero_shot_label), ` ${percent(answer.zero_shot_probability)}`];
    const change = answer.changed
      ? make("p", {}, make("span", { className: "tag" }, "changed"), " without adaptation: ", ...zeroShot)
      : make("p", { className: "soft" }, "The same without adaptation: ", ...zeroShot);
    const top = answer.top.slice(0, 5).map(({ label, probability }) =>
      make("li", {}, bar(label === answer.label ? "after" : "before", label, probability, percent(probability))),
    );
    const times = [
      `${answer.adapted ? `adapted with ${count(answer.support, "image")} from memory` : "not adapted: answered zero-shot"}`,
      `queued ${milliseconds(answer.queued_ms)}`,
      `computed ${milliseconds(answer.computed_ms)}`,
      `stream ${stream}`,
      `state ${whole(answer.state_version)}`,
    ];
    return make(
      "li",
      { className: "answer" },
      make("div", { className: "thumbnail" }, image),
      make(
        "div",
        {},
        make("p", { className: "label" }, make("strong", {}, nameOf(answer.label)), ` ${percent(answer.probability)}`),
        change,
        make("ol", { className: "bars", "aria-label": "The most probable classes" }, ...top),
        make("p", { className: "note" }, times.join(" · ")),
        make("p", { className: "file" }, nameOf(file.name || "pasted image")),
      ),
    );
  },
};
