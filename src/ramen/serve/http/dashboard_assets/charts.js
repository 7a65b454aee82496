/* Small charts of the last two minutes: one value per second and line, drawn as SVG. */

const POINTS = 120;
const SVG = "http://www.w3.org/2000/svg";

const makeSvg = (tag, attributes) => {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
};

/* The smallest of 1, 2, 5, 10, 20, 50 ... that is not below a value. */
const roundUp = (value) => {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * (1 - 1e-9));
};

/* The top of an axis in bytes: a power of two. */
const roundUpBytes = (value) => 2 ** Math.ceil(Math.log2(Math.max(1, value)));

class Chart {
  /* options: title, lines (their names), format (of values), floor (the lowest top of the axis), roundTop. */
  constructor(options) {
    this.options = { roundTop: roundUp, floor: 1, ...options };
    this.svg = makeSvg("svg", { viewBox: `0 0 ${POINTS - 1} 100`, preserveAspectRatio: "none", role: "img" });
    this.svg.append(makeSvg("path", { class: "grid", d: `M0 0H${POINTS - 1}M0 50H${POINTS - 1}M0 100H${POINTS - 1}` }));
    this.area = makeSvg("path", { class: "area" });
    this.paths = this.options.lines.map((_, number) => makeSvg("path", { class: `line line-${number}` }));
    this.svg.append(this.area, ...this.paths);
    this.top = make("span", {}, NONE);
    const axis = make("span", { className: "axis", "aria-hidden": "true" }, this.top, make("span", {}, "0"));
    this.element = make("div", { className: "chart" }, axis, this.svg);
    this.draw(this.options.lines.map(() => []));
  }

  /* Draw lines, each with at most POINTS values, the newest last; null where there is none. */
  draw(lines) {
    const { format, floor, roundTop, title } = this.options;
    const values = lines.flat().filter(isNumber);
    const top = roundTop(Math.max(floor, ...values));
    setText(this.top, format(top).replace(/\.0+(?=\D|$)/, ""));
    lines.forEach((line, number) => this.paths[number].setAttribute("d", this.path(line, top)));
    if (lines.length === 1) this.area.setAttribute("d", this.path(lines[0], top, true));
    this.svg.setAttribute("aria-label", `${title}, the last two minutes: ${this.spoken(lines, format)}`);
  }

  spoken(lines, format) {
    const parts = lines.map((line, number) => {
      const values = line.filter(isNumber);
      if (!values.length) return null;
      const name = this.options.lines[number];
      const range = `from ${format(Math.min(...values))} to ${format(Math.max(...values))}`;
      return `${name && `${name} `}${range}, now ${format(line[line.length - 1])}`;
    });
    return parts.filter((part) => part !== null).join("; ") || "no values yet";
  }

  /* Stretches between missing values; a value without neighbours becomes a short dash. */
  path(line, top, closed = false) {
    const start = POINTS - line.length;
    let d = "";
    let first = null;
    line.forEach((value, place) => {
      if (!isNumber(value)) return;
      const x = start + place;
      const y = (100 * (1 - Math.min(1, value / top))).toFixed(2);
      if (first === null) {
        first = x;
        d += closed ? `M${x} 100L${x} ${y}` : `M${x} ${y}`;
      } else d += `L${x} ${y}`;
      if (isNumber(line[place + 1])) return;
      if (first === x) d += `h-0.5`;
      if (closed) d += `V100Z`;
      first = null;
    });
    return d;
  }
}
