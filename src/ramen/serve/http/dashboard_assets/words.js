"use strict";

/* Elements and words. Text from the server becomes text nodes, and nothing else. */

const byId = (id) => document.getElementById(id);

const make = (tag, properties = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
};

/* Change text only if it differs, so that selections stay and screen readers are not disturbed. */
const setText = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};

const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff]/g;

/* Characters that nobody sees, or that turn text around, as escapes. */
const visible = (text) =>
  String(text).replace(UNSEEN, (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);

const shorten = (text, letters = 80) => (text.length <= letters ? text : `${text.slice(0, letters - 1)}…`);

const nameOf = (text) => make("bdi", {}, shorten(visible(text)));

const NONE = "–";
const GAP = "\u00a0"; // between a number and its unit, which stay together
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const digits = (value, places) =>
  value.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places });

const whole = (value) => (isNumber(value) ? digits(Math.round(value), 0) : NONE);

/* At most seven letters, for narrow columns. */
const compact = (value) => {
  const [unit, letter] = value < 1e9 ? [1e6, "M"] : [1e9, "G"];
  return value < 1e6 ? whole(value) : `${digits(value / unit, value < 100 * unit ? 1 : 0)}${GAP}${letter}`;
};

/* Three digits at least, for rates and times. */
const rate = (value) => {
  if (!isNumber(value)) return NONE;
  if (value === 0) return "0";
  return digits(value, value < 1 ? 2 : value < 100 ? 1 : 0);
};

const milliseconds = (value) => {
  if (!isNumber(value)) return NONE;
  return value < 10_000 ? `${rate(value)}${GAP}ms` : `${rate(value / 1000)}${GAP}s`;
};

const percent = (share) => (isNumber(share) ? `${digits(100 * share, 1)}${GAP}%` : NONE);

const bytes = (value) => {
  if (!isNumber(value)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (value >= 1024 && power < units.length - 1) {
    value /= 1024;
    power += 1;
  }
  return `${digits(value, power && value < 10 && !Number.isInteger(value) ? 1 : 0)}${GAP}${units[power]}`;
};

const count = (number, what, several = `${what}s`) => `${whole(number)} ${number === 1 ? what : several}`;

/* How long ago a time in seconds since 1970 was. */
const ago = (time) => {
  if (!isNumber(time)) return "never";
  const seconds = Math.max(0, Date.now() / 1000 - time);
  if (seconds < 5) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  const days = Math.floor(seconds / 86400);
  return days < 1000 ? `${days} d ago` : `${Math.floor(days / 365)} y ago`;
};

const moment = (time) =>
  isNumber(time) ? new Date(1000 * time).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" }) : NONE;

/* A label with a bar as long as its share; the bar is drawn by the style sheet. */
const bar = (kind, label, share, text, spoken = "") => {
  const element = make(
    "p",
    { className: `guess ${kind}` },
    ...(spoken ? [make("span", { className: "hidden" }, `${spoken} `)] : []),
    make("span", { className: "label", title: visible(label) }, nameOf(label)),
    make("span", { className: "percent" }, text),
  );
  element.style.setProperty("--share", `${100 * Math.min(1, Math.max(0, share || 0))}%`);
  return element;
};

const isCalm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
